"""Weights & Biases: a run on its server, or a folder to be synchronised later."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import wandb

from moray.tracking.interface import Point, Results, TrackedRun

_PROJECT = "moray"
_FOLDER = Path("results")


@contextmanager
def open_run(run: TrackedRun) -> Iterator["WandB"]:
    """Open a run by its id, or create it; see `Tracker`."""
    folder = Path(os.environ.get("WANDB_DIR", _FOLDER))
    # Otherwise, an absent one is replaced by a temporary one.
    folder.mkdir(parents=True, exist_ok=True)
    inner = wandb.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT),
        id=run.id,
        name=run.name,
        config=run.config,
        dir=folder,
        resume="allow",
        # The output of this process isn't worth keeping.
        settings=wandb.Settings(console="off", silent=True),
    )
    if inner.offline:
        own = Path(inner.dir).parent
        for earlier in own.parent.glob(f"offline-run-*-{run.id}"):
            if earlier != own:
                shutil.rmtree(earlier)
    tracker = WandB(inner)
    try:
        yield tracker
    finally:
        inner.finish(exit_code=0 if tracker.finished else 1)
        # Its background process would serve later processes of this one, with its own settings.
        wandb.teardown()


class WandB:
    """See `Tracker`.

    Without a connection, the library writes a folder each time that it is opened, and doesn't know
    what earlier ones have. So the new one gets everything, and the earlier ones are removed.

    With a connection, W&B only takes steps after the last one that it has. A step that is trained
    again, because a run was resumed from a checkpoint before it, keeps the point of the first time.
    """

    def __init__(self, run: wandb.Run) -> None:
        self._run, self._first_step = run, run.step
        self.finished = False

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            if point.step >= self._first_step:
                self._run.log(point.figures, step=point.step)

    def add_results(self, results: Results) -> None:
        self._run.summary.update(results.scores)
        # An artifact with the same content is not made again.
        artifact = wandb.Artifact(
            f"results-{self._run.id}", type="results", metadata={"sha256": results.digests}
        )
        for file in results.files:
            artifact.add_file(str(file))
        if results.samples:
            columns = list(results.samples[0])
            rows = [[sample[column] for column in columns] for sample in results.samples]
            artifact.add(wandb.Table(columns=columns, data=rows), "samples")
        self._run.log_artifact(artifact)

    def finish(self) -> None:
        self.finished = True
