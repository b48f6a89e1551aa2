"""What is read from the history of a training."""

from pathlib import Path

import pytest

from moray.sweeps.trajectory import Trajectory, read_trajectory
from moray.train.history import HISTORY, History


@pytest.fixture
def history(tmp_path: Path) -> Path:
    written = History(tmp_path, first_step=0)
    written.append(step=0, num_steps=40, note="of the tokens")
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0)):
        written.append(step=step, num_steps=40, loss=0.0, step_seconds=step / 10)
        written.append(step=step, num_steps=40, eval_loss=loss)
    return tmp_path / HISTORY


def test_losses_and_the_seconds_of_all_steps_so_far(history: Path) -> None:
    found = read_trajectory(history, patience=None, exports_best=False)
    assert found.losses == {10: 3.0, 20: 1.0, 30: 2.0}
    assert found.seconds == {10: 10.0, 20: 30.0, 30: 60.0}
    assert [found.ends_at(step) for step in (30, 40)] == [False, True]


def test_a_training_without_patience_ends_early(history: Path) -> None:
    found = read_trajectory(history, patience=1, exports_best=False)
    assert [found.ends_at(step) for step in found.losses] == [False, False, True]


@pytest.mark.parametrize(("exports_best", "loss"), [(False, 2.0), (True, 1.0)])
def test_the_loss_is_that_of_the_model_that_is_exported(
    history: Path, exports_best: bool, loss: float
) -> None:
    found = read_trajectory(history, patience=1, exports_best=exports_best)
    assert found.exported_loss(30) == loss


def test_there_may_be_no_history_yet(tmp_path: Path) -> None:
    found = read_trajectory(tmp_path / HISTORY, patience=None, exports_best=False)
    assert found == Trajectory({}, 0, {}, None, False)
