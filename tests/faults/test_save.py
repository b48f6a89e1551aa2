"""A process that is killed while it saves loses nothing that was saved before."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tensors_of
from faults.points import POINTS, arm
from fleet import losses
from forks import FORKS
from jobs import job_maker
from torch import Tensor

from moray.provenance.manifest import damaged_files
from moray.storage.interface import folder_of, path_of, step_of
from moray.train.checkpoint.save import Saver
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

ALONE = Worker(rank=0, world_size=1, device=torch.device("cpu"))
# Steps that are committed when the point is reached, for checkpoints at 2, 4, 6 and 8.
REACHED = {
    "before the history is on the disk": (2, 4),
    "after the rename": (4,),
    "before old ones are deleted": (4,),
    "while an old one is deleted": (6,),
    "after an old one is deleted": (6,),
}


QUICK = ("after the rename", "while an old one is deleted")
LONG = ("before the tensors", "in the middle of a file", "before the manifest", "before the rename")


def marks(point: str) -> list[pytest.MarkDecorator]:
    if point in QUICK:
        return []
    return [pytest.mark.long if point in LONG else pytest.mark.release]


def die(job: RunSpec, point: str) -> None:
    """Train, and be killed at a point of the save of step 4 or, if that has none, of step 6."""
    save = Saver.save

    def save_and_arm(saver: Saver, step: int, state: dict[str, Tensor], best: int | None) -> None:
        saver.finish()
        if step == 4:
            arm(point)
        save(saver, step, state, best)

    Saver.save = save_and_arm  # type: ignore[assignment,method-assign]
    train(job, ALONE)


def weights(job: RunSpec) -> dict[str, Tensor]:
    return tensors_of(path_of(folder_of(job.work), 8))


@pytest.fixture(scope="module")
def undisturbed(small: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    """A job that was trained in one go."""
    job = job_maker(small, tmp_path_factory.mktemp("undisturbed"))()
    train(job, ALONE)
    return job


# Each costs a training run in a process of its own.
@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=marks(point), id=point) for point in POINTS],
)
def test_a_save_that_is_killed_costs_no_checkpoint_and_no_bit(
    point: str, undisturbed: RunSpec, make_job: Any
) -> None:
    job = make_job()
    process = FORKS.Process(target=die, args=(job, point))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL

    assert train(job, ALONE)["resumed_from"] in REACHED.get(point, (2,))
    assert losses(job) == losses(undisturbed)
    ours, theirs = weights(job), weights(undisturbed)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    left = sorted(folder_of(job.work).iterdir())
    assert [step_of(path) for path in left] == [6, 8]
    assert not any(map(damaged_files, left))
