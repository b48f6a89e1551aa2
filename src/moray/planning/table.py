"""The plan of a run's memory as lines of text."""

from collections.abc import Iterator

from moray import machine
from moray.planning.advice import CARDS, Advice, usable
from moray.planning.demand import MOST_ROWS, Demand, Setup

_LABEL, _NUMBER = 24, 9


def lines(run: str, setup: Setup) -> Iterator[str]:
    """What a worker of a run needs, and which cards have it; takes a minute for large models."""
    advice = Advice(setup)
    demand = advice.demand(setup)
    yield _title(run, demand)
    parts = demand.parts(setup.rows)
    for name, size in parts.items():
        if size:
            yield f"  {name:<{_LABEL}}{size / 1e9:>{_NUMBER}.2f} GB"
    yield f"  {'in all':<{_LABEL}}{sum(parts.values()) / 1e9:>{_NUMBER}.2f} GB"
    yield from _assumptions(setup)
    if setup.device == "cpu":
        return
    for name, gigabytes in _cards():
        yield f"{name}: {_verdict(advice, usable(gigabytes))}"


def _title(run: str, demand: Demand) -> str:
    setup = demand.setup
    settings = setup.settings
    trained = f"{demand.trained / 1e6:,.1f} M of {demand.whole / 1e6:,.1f} M weights trained"
    where = "GPU" if setup.device == "cuda" else "CPU"
    workers = "1 worker" if setup.workers == 1 else f"each of {setup.workers} workers"
    rows = f"{setup.rows} row{'s' * (setup.rows != 1)} of {setup.block_size:,} tokens"
    return (
        f"{run}: {trained}; {rows} in a micro-batch, "
        f"{setup.precision}, {settings.strategy}; {workers}, on a {where}, needs at most"
    )


def _assumptions(setup: Setup) -> Iterator[str]:
    yield "all tokens are taken to be trained; fewer need less for logits"
    if setup.settings.compile is not False:
        yield "blocks are counted as they run uncompiled; compiled ones keep less"


def _cards() -> Iterator[tuple[str, float]]:
    if machine.gpus():
        import torch

        kinds = {}
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            kinds[facts.name] = facts.total_memory / 1e9
        for name, gigabytes in kinds.items():
            yield f"{name}, here, {gigabytes:.0f} GB", gigabytes
    for gigabytes in CARDS:
        yield f"{gigabytes} GB", gigabytes


def _verdict(advice: Advice, limit: float) -> str:
    setup = advice.setup
    demand = advice.demand(setup)
    largest = demand.largest(limit)
    if demand.total(setup.rows) <= limit:
        return f"fits; micro_batch_size {_number(largest)}"
    change = advice.change(limit)
    if change is None:
        return "doesn't fit, nor with any change that is known"
    return f"doesn't fit; set {', '.join(change.keys)} ({_number(change.largest)})"


def _number(largest: int) -> str:
    return f"{largest:,} or more" if largest == MOST_ROWS else f"at most {largest:,}"
