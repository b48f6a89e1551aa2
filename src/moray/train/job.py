"""What is trained: a run as the config describes it, and what a worker needs to train it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from moray.config.schema.base import Proofs
from moray.config.schema.sections import Data, Ray
from moray.config.schema.train import Adapter, Train
from moray.storage.interface import Remote
from moray.storage.transfer import Delivery


@dataclass(frozen=True)
class Part:
    """A dataset of a run.

    Attributes:
        store: store of its rows; absolute in a job.
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
    """A run as the config describes it: what is trained, on what, how and where.

    Attributes:
        start: Hugging Face folder to start from.
        parts: its datasets, whose rows are of the same task and type.
        settings: its `train` section.
        adapter: its `adapter` section; None to train the whole model.
        task_settings: the sections that only its task reads, by name.
        code: digest of the code that the result depends on.
        trackers: that its history is sent to.
        proofs: what follows if it differs from the plain libraries.
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

    @classmethod
    def of_params(
        cls,
        name: str,
        start: Path,
        stores: list[Path],
        cfg: dict[str, Any],
        execution: dict[str, Any],
        code: str = "",
    ) -> "RunSpec":
        """The run of a stage's params.

        Args:
            cfg: the datasets with their shares, the `adapter` section, and the keys that the
                result depends on of the `train` section and of those that only its task reads.
            execution: `ray` section, the names in `tracking`, `proofs`, and the other keys of the
                `train` and `data` sections.
        """
        shared = ("adapter", "datasets", "train")
        return cls(
            name=name,
            start=start,
            parts=tuple(
                Part(dataset, store, share)
                for (dataset, share), store in zip(cfg["datasets"].items(), stores, strict=True)
            ),
            settings=Train(**cfg["train"], **execution["train"]),
            adapter=Adapter(**cfg["adapter"]) if cfg["adapter"] else None,
            task_settings={key: cfg[key] for key in cfg if key not in shared},
            data=Data(**execution["data"]),
            ray=Ray(**execution["ray"]),
            code=code,
            trackers=tuple(execution["tracking"]),
            proofs=execution["proofs"],
        )


RowsThatFit = Callable[["Job", int, int], int]


@dataclass(frozen=True)
class Job:
    """A run to be trained; the same for all workers.

    Attributes:
        start: Hugging Face folder to start from, absolute.
        work: folder of the run on each machine, absolute: for its history, output and faults; and
            for its checkpoints, unless they are in an object store.
        threads: CPU threads of a worker.
        cache: folder for compiled code, absolute, shared by runs.
        remote: where the checkpoints are, if in an object store.
        deliveries: start and stores, in this order, for machines that don't have them.
        note: about this start, for the history of a run that continues.
        rows_that_fit: the most rows of a micro-batch, by the job, the number of workers, and the
            bytes of a GPU's memory; for `micro_batch_size: auto`.
        proofs: what follows if its first step differs from plain transformers'.
    """

    start: Path
    parts: tuple[Part, ...]
    work: Path
    settings: Train
    adapter: Adapter | None
    threads: int
    cache: Path
    task_settings: dict[str, Any] = field(default_factory=dict)
    remote: Remote | None = None
    deliveries: tuple[Delivery, ...] = ()
    note: str | None = None
    rows_that_fit: RowsThatFit | None = None
    proofs: Proofs = "refuse"

    @property
    def store(self) -> Path:
        """The store of the first dataset, which has the task and the type of rows of all."""
        return self.parts[0].store


def with_inputs_here(job: Job) -> Job:
    """The job with the places of start and stores on this machine.

    Raises:
        UserError: if they can't be brought here.
    """
    if not job.deliveries:
        return job
    start, *stores = job.deliveries
    return replace(
        job,
        start=start.here(job.start),
        parts=tuple(
            replace(part, store=delivery.here(part.store))
            for part, delivery in zip(job.parts, stores, strict=True)
        ),
    )
