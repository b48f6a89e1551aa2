"""Which settings are tried, and which trials are stopped: on losses that follow from a formula."""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from moray.extras.search.study import Study, Trajectory, Trial, Verdict, read_trajectory
from moray.train.history import HISTORY, History

SPACE: dict[str, dict[str, Any]] = {
    "adapter.rank": {"low": 1, "high": 64, "log": True, "integer": True},
    "train.adam_betas": {"choices": [[0.9, 0.95], None, "auto"]},
    "train.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True, "integer": False},
}
STEPS = (10, 20, 30, 40)


def losses(values: dict[str, Any]) -> dict[int, float]:
    """The best learning rate is 1e-2."""
    off = abs(math.log10(values["train.learning_rate"]) + 2)
    return {step: 1 + off + 10 / step for step in STEPS}


def trajectory(of: dict[int, float], patience: int | None = None) -> Trajectory:
    return Trajectory(of, STEPS[-1], {}, patience, exports_best=False)


def finish(study: Study, count: int) -> list[tuple[dict[str, Any], Verdict]]:
    """More trials, each judged once it is over."""
    found = []
    for _ in range(count):
        trial = study.next()
        verdict = trial.judge(trajectory(losses(trial.values)))
        assert verdict is not None
        study.tell(trial, verdict)
        found.append((trial.values, verdict))
    return found


def test_values_are_of_the_space_and_follow_from_the_seed() -> None:
    first, again, other = (finish(Study(SPACE, seed), 12) for seed in (0, 0, 1))
    assert first == again
    assert first[0] != other[0]
    for values, _ in first:
        assert values["adapter.rank"] in range(1, 65)
        assert values["train.adam_betas"] in SPACE["train.adam_betas"]["choices"]
        assert 1e-4 <= values["train.learning_rate"] <= 1e-1
    assert len({values["train.learning_rate"] for values, _ in first}) == 12


@pytest.mark.parametrize(("log", "middle"), [(False, 0.5), (True, 1e-2)])
def test_a_range_is_drawn_from_evenly_or_by_its_logarithm(log: bool, middle: float) -> None:
    space = {"train.learning_rate": {"low": 1e-4, "high": 1.0, "log": log, "integer": False}}
    drawn = [Study(space, seed).next().values["train.learning_rate"] for seed in range(200)]
    below = sum(value < middle for value in drawn)
    # Four standard deviations of a fair coin.
    assert abs(below - 100) < 4 * math.sqrt(50)


def test_the_order_in_which_keys_are_written_does_not_matter() -> None:
    turned = dict(reversed(SPACE.items()))
    assert finish(Study(SPACE, 0), 6) == finish(Study(turned, 0), 6)


def test_later_trials_come_closer_than_random_ones() -> None:
    found = finish(Study(SPACE, 0), 40)
    off = [abs(math.log10(values["train.learning_rate"]) + 2) for values, _ in found]
    assert statistics.median(off[20:]) < statistics.median(off[:5]) / 2


def test_a_trial_is_pruned_at_the_first_step_where_it_is_worse_than_the_median() -> None:
    study, complete = Study(SPACE, 0), list[dict[int, float]]()
    for _ in range(12):
        trial = study.next()
        found = losses(trial.values)
        worse = [
            step
            for step in STEPS[:-1]
            if len(complete) >= 3
            and found[step] > statistics.median(other[step] for other in complete)
        ]
        expected = (
            Verdict("pruned", worse[0], found[worse[0]])
            if worse
            else Verdict("finished", STEPS[-1], found[STEPS[-1]])
        )
        verdict = trial.judge(trajectory(found))
        assert verdict == expected
        study.tell(trial, expected)
        if not worse:
            complete.append(found)
    assert 3 < len(complete) < 12


def judged_piecemeal(trial: Trial) -> Verdict | None:
    """While it trains, and as after a kill, with a part of it seen twice."""
    whole = losses(trial.values)
    verdict = None
    for seen in (0, 1, 2, 1, 2, 3, 3, 4):
        so_far = {step: whole[step] for step in STEPS[:seen]}
        verdict = trial.judge(trajectory(so_far))
    return verdict


def test_a_verdict_does_not_depend_on_when_the_history_was_looked_at() -> None:
    expected = finish(Study(SPACE, 0), 10)
    study = Study(SPACE, 0)
    for values, verdict in expected:
        trial = study.next()
        assert trial.values == values
        assert judged_piecemeal(trial) == verdict
        study.tell(trial, verdict)


def test_a_training_that_stops_early_by_itself_is_finished() -> None:
    rising = {10: 1.0, 20: 2.0}
    assert Study(SPACE, 0).next().judge(trajectory(rising)) is None
    ended = Study(SPACE, 0).next().judge(trajectory(rising, patience=1))
    assert ended == Verdict("finished", 20, 2.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_the_worst(loss: float) -> None:
    study = Study(SPACE, 0)
    for _ in range(2):
        trial = study.next()
        verdict = trial.judge(trajectory({40: loss}))
        assert verdict == Verdict("diverged", 40, None)
        study.tell(trial, verdict)
    assert len(finish(study, 10)) == 10


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
