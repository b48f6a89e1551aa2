"""Start the workers of evaluation and generation."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from moray.config.layout import for_stage, lay_out_here
from moray.config.schema import Ray
from moray.evaluate.execution import Execution
from moray.workers.entry import EntryPoint
from moray.workers.launch import Launch
from moray.workers.progress import shown_batches
from moray.workers.run import run_on_workers

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@dataclass(frozen=True)
class EvaluationWorkers:
    """Workers of a stage.

    Attributes:
        launch: where and how they are started.
        execution: settings that their jobs share.
        label: label of the progress bar.
    """

    launch: Launch
    execution: Execution
    label: str

    def run(
        self, entry_point: EntryPoint[Argument, Result], job: Argument, batches: int
    ) -> list[Result]:
        """Run a job on the workers and show its progress in batches."""
        with shown_batches(self.execution.folder, self.label, batches):
            return run_on_workers(entry_point, job, self.launch)


@contextmanager
def on_evaluation_workers(
    stage: str,
    run: str,
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    label: str | None = None,
) -> Iterator[EvaluationWorkers]:
    """The workers of a stage; during the body they share a temporary folder next to its output.

    Args:
        stage: name of the stage and of its section in the config.
        run: name of the run.
        output: output file of the stage.
        cfg: the keys of the section that the result depends on.
        execution: the section's other keys under the stage's name; the run's `ray` section, its
            `launcher` and its `stall_timeout`.
        label: label of the progress bar; None for the names of stage and run.
    """
    section = execution[stage]
    ray = for_stage(Ray(**execution["ray"]), section["num_workers"])
    alone = ray.address == "local" and lay_out_here(ray).num_workers == 1
    with tempfile.TemporaryDirectory(prefix=f".{stage}-", dir=output.parent) as temporary:
        folder = Path(temporary).absolute()
        yield EvaluationWorkers(
            Launch(
                ray,
                f"runs.{run}.ray",
                folder,
                execution["launcher"],
                timeout=2 * execution["stall_timeout"],
                in_process=True,
            ),
            Execution(
                folder,
                section["batch_size"],
                f"runs.{run}.{stage}.batch_size",
                cfg["precision"],
                None if alone else max(1, int(ray.resources_per_worker.get("CPU", 1))),
            ),
            label or f"{stage} {run}",
        )
