"""Runs with a teacher: the losses of an independent computation, under every engine and layout."""

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import check_resumption
from engines import LORA, ON_TWO, check_losses, jobs_of, losses_alone, workers_of
from fleet import losses, train_all
from jobs import Make, job_maker
from plain import taught_losses_one_by_one
from taught import CFG, write_taught, write_teacher

from moray.config.schema.base import result_keys
from moray.config.schema.losses import Distillation
from moray.train.loop import train
from moray.workers.entry import Worker

RUN = {"max_steps": 8, "learning_rate": 1e-3, "save_steps": 8}
SETTINGS = Distillation.model_validate({"teacher": "large", "temperature": 2.0, "top_k": 8})


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Path:
    """A folder with `model`, the student, and `store`, its rows with a teacher."""
    folder = tmp_path_factory.mktemp("taught")
    (folder / "model").symlink_to(small / "model")
    write_teacher(folder, small)
    write_taught(folder, small, folder / "store")
    return folder


@pytest.fixture(scope="module")
def make_job(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Make]:
    """Makes `job_maker`s by keys of the section."""

    def make(store: str = "store", **keys: float) -> Make:
        section = result_keys(SETTINGS.model_copy(update=keys))
        folder = tmp_path_factory.mktemp("jobs")
        return job_maker(taught, folder, store, distillation=section)

    return make


@pytest.mark.parametrize("alpha", [0.7, pytest.param(1.0, marks=pytest.mark.long)])
def test_losses_are_those_of_plain_transformers(
    alpha: float, make_job: Callable[..., Make], alone: Worker
) -> None:
    job = make_job(alpha=alpha)(**RUN)
    train(job, alone)
    # Divergences are small beside the logits that they are computed from.
    assert losses(job) == pytest.approx(taught_losses_one_by_one(job), rel=1e-5, abs=1e-6)


@pytest.mark.long
def test_with_all_tokens_losses_are_those_of_plain_transformers(
    taught: Path, small: Path, make_job: Callable[..., Make], alone: Worker
) -> None:
    write_taught(taught, small, taught / "whole", {**CFG, "top_k": 10_000})
    job = make_job("whole")(**RUN)
    train(job, alone)
    # Divergences are small beside the logits that they are computed from.
    assert losses(job) == pytest.approx(taught_losses_one_by_one(job), rel=1e-5, abs=1e-6)


@pytest.fixture(scope="module")
def alone_losses(make_job: Callable[..., Make], alone: Worker) -> dict[str, list[float]]:
    return losses_alone(make_job(), alone, RUN)


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param(("2 x 4 x 2",), marks=pytest.mark.long),
        pytest.param(("1 x 16",), marks=[pytest.mark.long, pytest.mark.release]),
        pytest.param(("2 x 4 x 2", LORA), marks=[pytest.mark.long, pytest.mark.release]),
    ],
)
def test_losses_are_those_of_a_single_process_at_each_step(
    layouts: tuple[str, ...],
    make_job: Callable[..., Make],
    alone_losses: dict[str, list[float]],
    tmp_path: Path,
) -> None:
    jobs = jobs_of(make_job(), ON_TWO, layouts, "torchrun", RUN)
    train_all([*jobs.values()], workers_of(layouts), "torchrun", tmp_path / "workers")
    check_losses(jobs, alone_losses)


def test_a_resumed_run_ends_with_the_same_bits(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    check_resumption(make_job(), alone, 4)
