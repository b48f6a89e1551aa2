"""The plan of a run's memory: which cards it fits on, and what to change where it doesn't."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from moray import machine
from moray.config.schema.strategies import STRATEGIES
from moray.config.schema.train import Adapter
from moray.extras.memory_plan.demand import MOST_ROWS, Demand
from moray.extras.memory_plan.setup import Setup

# GB of the cards that people have.
_CARDS = (24, 48, 80, 141)
# Of a card's memory, for CUDA's own and for what the allocator can't use.
_RESERVED = 0.08
_MOST_WORKERS = 64
# From so many weights on, they are given in millions.
_MILLIONS = 1_000_000
# Widths of the columns of a plan.
_LABEL, _NUMBER = 24, 9


# Whether a run can have these keys, as a user writes them.
Accepts = Callable[[Sequence[str]], bool]


def usable(gigabytes: float) -> float:
    """Bytes of a card that a run can use."""
    return (1 - _RESERVED) * gigabytes * 1e9


@dataclass(frozen=True)
class Change:
    """Settings under which a run fits.

    Attributes:
        keys: of the run's config, with their values, as a user writes them.
        largest: the largest micro-batch under them.
    """

    keys: tuple[str, ...]
    largest: int


class Advice:
    """What to change in a setup; what is found for one card is used for the others."""

    def __init__(self, setup: Setup, accepts: Accepts = lambda keys: True) -> None:
        self.setup = setup
        self._accepts = accepts
        self._demands: dict[str, Demand] = {}

    def demand(self, setup: Setup) -> Demand:
        """The memory that a setup needs."""
        key = repr(setup)
        if key not in self._demands:
            self._demands[key] = Demand(setup)
        return self._demands[key]

    def change(self, limit: float) -> Change | None:
        """The first change that makes the run fit into so many bytes; None if none does.

        What costs least comes first: time, then nothing but rounding, then what is trained, then
        the precision of the base, then other hardware.
        """
        for keys, setup in self._changes():
            if not self._accepts(keys) or setup.fault_of_quantization():
                continue
            demand = self.demand(setup)
            if demand.total(setup.rows) <= limit:
                return Change(keys, demand.largest(limit))
            largest = demand.largest(limit)
            if largest:
                return Change((*keys, f"train.micro_batch_size: {largest}"), largest)
        return self._more_workers(limit)

    def _changes(self) -> Iterator[tuple[tuple[str, ...], Setup]]:
        setup = self.setup
        keys: tuple[str, ...] = ()
        if not setup.settings.gradient_checkpointing:
            keys = (*keys, "train.gradient_checkpointing: true")
            setup = setup.with_train(gradient_checkpointing=True)
        yield keys, setup
        if setup.settings.gradient_checkpointing is True:
            offloads = setup.with_train(gradient_checkpointing="offload")
            yield ("train.gradient_checkpointing: offload",), offloads
        if setup.adapter is None and STRATEGIES[setup.settings.strategy].takes_any_optimizer:
            yield from self._in_fewer_bits(keys, setup)
        if setup.settings.weights == "bf16":
            # Adapters are trained in fp32.
            keys = (*keys, "train.weights: fp32")
            setup = setup.with_train(weights="fp32")
        adapter = setup.adapter
        if adapter is None or adapter.base_dtype == "fp32":
            adapter = (adapter or Adapter()).model_copy(update={"base_dtype": "bf16"})
            keys = (*keys, "adapter.base_dtype: bf16")
            setup = replace(setup, adapter=adapter)
            yield keys, setup
        strategy = setup.settings.strategy
        refused = adapter.use_dora and strategy == "fsdp2"
        fewer = {None: ("8bit", "4bit"), "8bit": ("4bit",), "4bit": ()}[adapter.quantize_base]
        for bits in fewer if STRATEGIES[strategy].quantizes and not refused else ():
            quantized = adapter.model_copy(update={"quantize_base": bits})
            yield (*keys, f"adapter.quantize_base: {bits}"), replace(setup, adapter=quantized)

    def _in_fewer_bits(
        self, keys: tuple[str, ...], setup: Setup
    ) -> Iterator[tuple[tuple[str, ...], Setup]]:
        in_8bit = (*keys, "train.optimizer: adamw_8bit")
        if setup.settings.optimizer == "adamw" and self._accepts(in_8bit):
            keys = in_8bit
            setup = setup.with_train(optimizer="adamw_8bit")
            yield keys, setup
        rounds = setup.settings.optimizer in ("adamw", "adamw_8bit")
        if rounds and setup.settings.weights == "fp32" and setup.precision == "bf16":
            yield (*keys, "train.weights: bf16"), setup.with_train(weights="bf16")

    def _more_workers(self, limit: float) -> Change | None:
        adapter = self.setup.adapter
        if adapter and adapter.quantize_base and adapter.use_dora:
            return None
        setup = self.setup.with_train(
            gradient_checkpointing=True, micro_batch_size=1, strategy="fsdp2"
        )
        demand = self.demand(setup)
        rows = setup.settings.global_batch_size
        # They have equal shares of a step.
        more = range(setup.workers + 1, min(rows, _MOST_WORKERS) + 1)
        for workers in (number for number in more if rows % number == 0):
            if largest := demand.under(replace(setup, workers=workers)).largest(limit):
                keys = (
                    "train.gradient_checkpointing: true",
                    "train.strategy: fsdp2",
                    f"ray.num_workers: {workers}",
                    f"train.micro_batch_size: {largest}",
                )
                if self._accepts(keys):
                    return Change(keys, largest)
        return None


def lines(run: str, setup: Setup, accepts: Accepts) -> Iterator[str]:
    """What a worker of a run needs, and which cards have it; takes a minute for large models."""
    advice = Advice(setup, accepts)
    demand = advice.demand(setup)
    yield _title(run, demand)
    parts = {name: size for name, size in demand.parts(setup.rows).items() if size}
    total = sum(parts.values())
    unit, scale = ("GB", 1e9) if total >= 1e9 else ("MB", 1e6)
    for name, size in {**parts, "in all": total}.items():
        yield f"  {name:<{_LABEL}}{size / scale:>{_NUMBER}.2f} {unit}"
    yield "assumes every token is trained; with fewer, logits need less"
    if setup.settings.compile is not False:
        yield "blocks are counted as they run uncompiled; compiled ones keep less"
    if setup.device == "cpu":
        return
    if not machine.gpus():
        yield "this machine has no GPU, so the plan is for another one"
    for name, gigabytes in _cards():
        yield f"{name}: {_verdict(advice, usable(gigabytes))}"


def _title(run: str, demand: Demand) -> str:
    setup = demand.setup
    settings = setup.settings
    trained = f"{_weights(demand.trained)} of {_weights(demand.whole)} weights trained"
    where = "GPU" if setup.device == "cuda" else "CPU"
    workers = "1 worker" if setup.workers == 1 else f"each of {setup.workers} workers"
    rows = f"{setup.rows} row{'s' * (setup.rows != 1)} of {setup.block_size:,} tokens"
    return (
        f"{run}: {trained}; {rows} in a micro-batch, "
        f"{setup.precision}, {settings.strategy}; {workers}, on a {where}, needs at most"
    )


def _weights(number: int) -> str:
    return f"{number / 1e6:,.1f} M" if number >= _MILLIONS else f"{number:,}"


def _cards() -> Iterator[tuple[str, float]]:
    if machine.gpus():
        kinds = {}
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            kinds[facts.name] = facts.total_memory / 1e9
        for name, gigabytes in kinds.items():
            yield f"{name}, here, {gigabytes:.0f} GB", gigabytes
    for gigabytes in _CARDS:
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
