"""What is trained: the one object that goes from the rule to the optimizer."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from moray.config.schema.base import Proofs
from moray.config.schema.sections import Data, Ray
from moray.config.schema.train import Adapter, Train
from moray.storage.interface import Remote

_SHARED = ("adapter", "datasets", "train")


def task_settings(cfg: dict[str, Any]) -> dict[str, Any]:
    """The sections of a training's `cfg` that only its task reads, by name."""
    return {key: value for key, value in cfg.items() if key not in _SHARED}


@dataclass(frozen=True)
class Part:
    """A dataset of a run.

    Attributes:
        store: store of its rows.
        share: its share in what the loss is averaged over, for example in the trained tokens;
            relative to the other datasets' shares.
        rows_url: where its rows are streamed from; None to memory-map them.
    """

    dataset: str
    store: Path
    share: float = 1.0
    rows_url: str | None = None


@dataclass(frozen=True)
class RunSpec:
    """A run: what is trained, on what, how and where. The same for all of its workers.

    It is made from the config. The driver makes its paths absolute and fills in what only it knows,
    from `work` on; workers fill in a micro-batch size of `auto`, and their precision.

    Attributes:
        start: Hugging Face folder to start from.
        parts: its datasets, whose rows are of the same task and type.
        settings: its `train` section.
        adapter: its `adapter` section; None to train the whole model.
        task_settings: the sections that only its task reads, by name.
        code: digest of the code that the result depends on.
        trackers: that its history is sent to.
        proofs: what follows if it differs from the plain libraries.
        work: folder of the run on each machine: for its history, output and faults; and for its
            checkpoints, unless they are in an object store.
        cache: folder for compiled code, shared by runs.
        remote: where the checkpoints are, if in an object store.
        note: about this start, for the history of a run that continues.
    """

    name: str
    start: Path
    parts: tuple[Part, ...]
    settings: Train
    adapter: Adapter | None = None
    task_settings: dict[str, Any] = field(default_factory=dict)
    data: Data = field(default_factory=Data)
    ray: Ray = field(default_factory=Ray)
    code: str = ""
    trackers: tuple[str, ...] = ()
    proofs: Proofs = "refuse"
    work: Path = Path()
    cache: Path = Path()
    remote: Remote | None = None
    note: str | None = None

    @property
    def store(self) -> Path:
        """The store of the first dataset, which has the task and the type of rows of all."""
        return self.parts[0].store

    @property
    def threads(self) -> int:
        """CPU threads of a worker."""
        return max(1, int(self.ray.shares.get("CPU", 1)))

    def with_inputs(self, here: Callable[[Path], Path]) -> Self:
        """The run with other places of its start and its stores."""
        parts = tuple(replace(part, store=here(part.store)) for part in self.parts)
        return replace(self, start=here(self.start), parts=parts)

    @classmethod
    def of_params(
        cls,
        name: str,
        start: Path,
        stores: list[Path],
        cfg: dict[str, Any],
        execution: dict[str, Any],
        code: str = "",
    ) -> Self:
        """The run of a stage's params.

        Args:
            cfg: the datasets with their shares, the `adapter` section, and the keys that the
                result depends on of the `train` section and of those that only its task reads.
            execution: `ray` section, the names in `tracking`, `proofs`, and the other keys of the
                `train` and `data` sections.
        """
        return cls(
            name=name,
            start=start,
            parts=tuple(
                Part(dataset, store, share)
                for (dataset, share), store in zip(cfg["datasets"].items(), stores, strict=True)
            ),
            settings=Train(**cfg["train"], **execution["train"]),
            adapter=Adapter(**cfg["adapter"]) if cfg["adapter"] else None,
            task_settings=task_settings(cfg),
            data=Data(**execution["data"]),
            ray=Ray(**execution["ray"]),
            code=code,
            trackers=tuple(execution["tracking"]),
            proofs=execution["proofs"],
        )
