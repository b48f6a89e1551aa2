"""Start the workers of evaluation and generation.

To machines without the models and rows, an object store delivers them. Where all machines see the
folder of the output, the results of batches outlive a kill there, and the next start with the same
inputs, settings, code and libraries goes on with the other batches.
"""

import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from moray.config.layout import for_stage, lay_out_here, workers_are_here
from moray.config.schema.sections import Ray
from moray.console import say
from moray.errors import UserError
from moray.evaluate.batches import BatchResults, batches_folder, remove_batches
from moray.evaluate.worker import EvaluationJob
from moray.model.folder import whole_model_and_adapters
from moray.provenance.edits import code_digest
from moray.provenance.lineage import software
from moray.provenance.manifest import MANIFEST, fingerprint, sha256_file
from moray.storage.open import needed_libraries
from moray.storage.transfer import scratch
from moray.workers.entry import EntryPoint, show_batches
from moray.workers.exchange import Exchange, deliver_inputs, no_files
from moray.workers.launch import Launch
from moray.workers.run import run_on_workers

Result = TypeVar("Result")


@dataclass
class EvaluationWorkers:
    """Workers of a stage; without a shared folder, their files are put below a URL.

    Attributes:
        output: what becomes of the results, absolute.
        decided_by: what decides on the results of an entry point besides its models and stores.
        seconds: that computing the results took, of earlier processes too.
    """

    launch: Launch
    job: EvaluationJob
    label: str
    url: str | None
    output: Path
    decided_by: list[Any]
    seconds: float = field(default=0.0, init=False)

    @property
    def batches(self) -> Path:
        """The folder with the results of batches, once the workers have run."""
        return self.job.batches or self.job.folder

    def run(
        self,
        entry_point: EntryPoint[EvaluationJob, Result],
        models: dict[str, Path],
        stores: tuple[Path, ...],
        *counts: int,
        files: Callable[[int], tuple[str, ...]] = no_files,
        decided_by: Any = None,
    ) -> list[Result]:
        """Run an entry point on models and so many rows of each store; shows its progress.

        Batches whose results a killed process has on disk aren't computed again.

        Args:
            models, stores: as in a job.
            counts: numbers of rows, or of prompts; none if the workers find them out.
            files: names of the files that a worker leaves in the job's folder, by its rank.
            decided_by: arguments of the entry point that decide on its results, for JSON.
        """
        began = time.monotonic()
        self.job = job = replace(self.job, models=models, stores=stores)
        if self.url is None:
            key = _key(job, [*self.decided_by, decided_by])
            self.job = job = replace(job, batches=batches_folder(self.output, key))
        earlier = BatchResults(job.batches)
        done, total = len(earlier), len(models) * sum(-(-n // job.batch_size) for n in counts)
        if done:
            plural = "es" * (done != 1)
            say(f"{self.label}: continues after {done:,} batch{plural} of an earlier process")
        with show_batches(job.folder, self.label, total or None, start=done):
            results = run_on_workers(entry_point, job, self._launch(job, files))
        self.seconds = earlier.seconds + time.monotonic() - began
        return results

    def _launch(self, job: EvaluationJob, files: Callable[[int], tuple[str, ...]]) -> Launch:
        """The launch with deliveries of the job's inputs, for machines without them."""
        if self.url is None:
            return self.launch
        inputs = {store: [store] for store in job.stores}
        inputs |= {folder: _parts_of(folder) for folder in job.models.values()}
        deliveries = deliver_inputs(inputs, self.launch.ray.storage_path)
        return replace(self.launch, exchange=Exchange(self.url, deliveries, files))


def _parts_of(model: Path) -> list[Path]:
    """The folders that a model is made of."""
    whole, adapters = whole_model_and_adapters(model)
    return [whole, *adapters]


def _key(job: EvaluationJob, decided_by: list[Any]) -> str:
    """A digest of what decides on the results of batches, and of the code, on their form."""

    def digests(folders: Iterable[Path]) -> list[str]:
        manifests = (folder / MANIFEST for folder in folders)
        # A folder without one is reported by what loads it.
        return [sha256_file(manifest) for manifest in manifests if manifest.is_file()]

    models = {name: digests(_parts_of(folder)) for name, folder in job.models.items()}
    settings = [code_digest(), decided_by, job.batch_size, job.precision, models]
    return fingerprint(settings, digests(job.stores))


def with_interval(figure: dict[str, float], form: str = ".3f") -> str:
    """A figure with its interval, as stages print it."""
    value, low, high = (format(figure[name], form) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


@contextmanager
def start_evaluation_workers(
    stage: str,
    run: str,
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
    label: str | None = None,
) -> Iterator[EvaluationWorkers]:
    """The workers of a stage; during the body they have a temporary folder.

    It is next to the output, where all nodes see it, unless `ray.storage_path` is an object store.
    Those of earlier starts that were killed are removed. The results of batches are removed when
    the body has ended, or refuses them; after an interruption, and if the workers fail, they stay
    for the next start.

    Args:
        stage: name of the stage and of its section in the config.
        execution: the section's other keys under the stage's name; the run's `ray` section, its
            `launcher` and its `stall_timeout`.
        code: the version of what decides on the results.
    """
    section = execution[stage]
    ray = for_stage(Ray(**execution["ray"]), section["num_workers"])
    alone = ray.address == "local" and lay_out_here(ray).num_workers == 1
    here = workers_are_here(ray, execution["launcher"])
    shared = here or not ray.in_object_store
    # On GPUs, other kernels compute, and with `precision: auto` in another type.
    use_gpu = lay_out_here(ray).use_gpu if here else ray.use_gpu
    parent = output.parent if shared else scratch()
    with _temporary_folder(f".{stage}-", parent) as folder:
        workers = EvaluationWorkers(
            Launch(
                ray,
                f"runs.{run}.ray",
                folder,
                execution["launcher"],
                timeout=2 * execution["stall_timeout"],
                in_process=True,
                libraries=() if shared else needed_libraries(ray.storage_path),
            ),
            EvaluationJob(
                folder,
                section["batch_size"],
                f"runs.{run}.{stage}.batch_size",
                cfg["precision"],
                None if alone else max(1, int(ray.shares.get("CPU", 1))),
            ),
            label or f"{stage} {run}",
            None if shared else f"{ray.storage_path.rstrip('/')}/{run}/{stage}-{uuid.uuid4().hex}",
            output.absolute(),
            [cfg, code, software(), use_gpu],
        )
        try:
            yield workers
        except UserError:
            if workers.seconds:
                remove_batches(workers.output)
            raise
        remove_batches(workers.output)


@contextmanager
def _temporary_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """A folder with an absolute path for the body; removes those whose process was killed.

    The kernel releases a folder's lock when its process dies. The parent's is held meanwhile, so
    that no folder is taken for a dead process's before it is locked.
    """
    with ExitStack() as locks:
        with ExitStack() as gate:
            # If the file system has no such locks, nothing is removed.
            if _lock(parent, gate, wait=True):
                for leftover in parent.glob(f"{prefix}*"):
                    if _lock(leftover, gate):
                        shutil.rmtree(leftover, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).absolute()
            locks.callback(shutil.rmtree, folder, ignore_errors=True)
            _lock(folder, locks)
        yield folder


def _lock(folder: Path, locks: ExitStack, wait: bool = False) -> bool:
    """Whether a folder's lock could be had; it is held as long as the stack."""
    descriptor = os.open(folder, os.O_RDONLY)
    locks.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
