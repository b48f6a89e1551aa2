"""Which cards a run fits on, and what to change where it doesn't."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from moray.config.schema.train import STRATEGIES, Adapter
from moray.planning.demand import Demand, Setup

# GB of the cards that people have.
CARDS = (24, 48, 80, 141)
# Of a card's memory, for CUDA's own and for what the allocator can't use.
_RESERVED = 0.08
_MOST_WORKERS = 64


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

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
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
        if setup.adapter is None and STRATEGIES[setup.settings.strategy].takes_adamw_8bit:
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

    @staticmethod
    def _in_fewer_bits(
        keys: tuple[str, ...], setup: Setup
    ) -> Iterator[tuple[tuple[str, ...], Setup]]:
        if setup.settings.optimizer == "adamw":
            keys = (*keys, "train.optimizer: adamw_8bit")
            setup = setup.with_train(optimizer="adamw_8bit")
            yield keys, setup
        if setup.settings.weights == "fp32" and setup.precision == "bf16":
            yield (*keys, "train.weights: bf16"), setup.with_train(weights="bf16")

    def _more_workers(self, limit: float) -> Change | None:
        adapter = self.setup.adapter
        if adapter and adapter.quantize_base and adapter.use_dora:
            return None
        setup = self.setup.with_train(
            gradient_checkpointing=True, micro_batch_size=1, strategy="fsdp2"
        )
        demand = self.demand(setup)
        workers = setup.workers
        while (workers := 2 * workers) <= _MOST_WORKERS:
            if largest := demand.under(replace(setup, workers=workers)).largest(limit):
                keys = (
                    "train.gradient_checkpointing: true",
                    "train.strategy: fsdp2",
                    f"ray.num_workers: {workers}",
                    f"train.micro_batch_size: {largest}",
                )
                return Change(keys, largest)
        return None
