"""Runs on pairs: the losses of an independent computation, under every engine and layout."""

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import are_equal, last_tensors, train_and_crash
from engines import LORA, ON_TWO, check_losses, jobs_of, losses_alone, workers_of
from fleet import losses, train_all
from jobs import Make, job_maker
from plain_preference import preference_losses_one_by_one

from moray.config.schema.base import result_keys
from moray.config.schema.train import Preference
from moray.train.loop import train
from moray.workers.entry import Worker

SETTINGS = {
    "dpo": Preference(),
    "dpo, smoothed": Preference(label_smoothing=0.2, beta=0.5),
    "ipo": Preference(loss="ipo", beta=0.2),
}
RUN = {
    "max_steps": 20,
    "global_batch_size": 16,
    "learning_rate": 1e-3,
    "eval_steps": 10,
    "save_steps": 20,
}


@pytest.fixture(scope="module")
def make_job(preferences: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Make]:
    """Makes `job_maker`s by the settings of the loss."""

    def make(loss: str = "dpo") -> Make:
        folder = tmp_path_factory.mktemp("jobs")
        keys = result_keys(SETTINGS[loss])
        return job_maker(preferences, folder, "reference", preference=keys)

    return make


@pytest.mark.parametrize(
    "loss",
    ["dpo", *(pytest.param(loss, marks=pytest.mark.long) for loss in SETTINGS if loss != "dpo")],
)
def test_losses_are_those_of_plain_transformers_with_both_models(
    loss: str, make_job: Callable[..., Make], alone: Worker
) -> None:
    job = make_job(loss)(**RUN)
    train(job, alone)
    expected = preference_losses_one_by_one(job)
    assert len(expected) == 20
    assert losses(job) == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < 0.99 * expected[0]


@pytest.fixture(scope="module")
def alone_losses(make_job: Callable[..., Make], alone: Worker) -> dict[str, list[float]]:
    return losses_alone(make_job(), alone, RUN)


@pytest.mark.parametrize(
    ("launcher", "layouts"),
    [
        pytest.param("torchrun", ("2 x 4 x 2", LORA), marks=pytest.mark.long),
        pytest.param("torchrun", ("1 x 16",), marks=pytest.mark.release),
        pytest.param("torchrun", ("2 x 8",), marks=pytest.mark.release),
        pytest.param("torchrun", ("4 x 4",), marks=pytest.mark.release),
        pytest.param("ray", ("2 x 8", LORA), marks=pytest.mark.release),
    ],
)
def test_losses_are_those_of_a_single_process_at_each_step(
    launcher: str,
    layouts: tuple[str, ...],
    make_job: Callable[..., Make],
    alone_losses: dict[str, list[float]],
    tmp_path: Path,
) -> None:
    jobs = jobs_of(make_job(), ON_TWO, layouts, launcher, RUN)
    train_all([*jobs.values()], workers_of(layouts), launcher, tmp_path / "workers")
    check_losses(jobs, alone_losses)


@pytest.mark.long
def test_gradient_checkpointing_changes_nothing_but_rounding(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    make = make_job()
    kept, again = make("kept"), make("again", gradient_checkpointing=True)
    for job in (kept, again):
        train(job, alone)
    assert losses(again) == pytest.approx(losses(kept), rel=1e-6)


def test_a_resumed_run_ends_with_the_same_bits(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    make = make_job()
    undisturbed, resumed = make("undisturbed"), make("resumed")
    train(undisturbed, alone)
    train_and_crash(resumed, alone, 4)
    assert train(resumed, alone)["resumed_from"] == 4
    assert losses(resumed) == losses(undisturbed)
    assert are_equal(last_tensors(resumed), last_tensors(undisturbed))
