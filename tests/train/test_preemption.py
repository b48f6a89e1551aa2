"""What a training does about notices that nodes are about to be preempted."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import check_same_bits
from jobs import Make, job_maker

from moray.storage.folder import FolderStorage
from moray.train.history import HISTORY, read_history
from moray.train.loop import train
from moray.train.preemption import Notices
from moray.train.supervision import Request
from moray.workers.entry import Worker
from moray.workers.preemption import Notice, PreemptedError

IN_AN_HOUR = Notice(("10.0.0.1",), time.time() + 3600)
NEXT = Notice(("10.0.0.1", "10.0.0.2"), time.time() + 1800)
UNKNOWN = Notice(("10.0.0.1",), None)


@pytest.fixture
def make_job(small: Path, tmp_path: Path) -> Make:
    return job_maker(small, tmp_path)


def from_step(step: int, notice: Notice) -> Callable[[], Notice | None]:
    """A source of notices that is asked once at the start of each step."""
    asked = iter(range(step))
    return lambda: notice if next(asked, None) is None else None


def requests(notices: Notices) -> list[Request]:
    """What the notices ask for at the next steps, each of which is done and saved if wanted."""
    found = []
    for _ in range(3):
        found.append(notices.pending())
        if found[-1]:
            notices.done(found[-1])
    return found


def test_a_distant_deadline_asks_for_one_checkpoint_a_notice() -> None:
    newest = [IN_AN_HOUR]
    notices = Notices(lambda: newest[-1])
    assert requests(notices) == [Request.SAVE, Request.NONE, Request.NONE]
    newest.append(NEXT)
    assert requests(notices) == [Request.SAVE, Request.NONE, Request.NONE]


@pytest.mark.parametrize("deadline", [None, 0.0, 3.0])
def test_workers_leave_after_a_checkpoint_if_the_deadline_is_near_or_unknown(
    deadline: float | None,
) -> None:
    notice = Notice(("10.0.0.1",), None if deadline is None else time.time() + deadline)
    assert requests(Notices(lambda: notice)) == [Request.SAVE, Request.LEAVE, Request.LEAVE]


def test_without_a_notice_nothing_is_asked_for() -> None:
    assert requests(Notices(lambda: None)) == [Request.NONE] * 3


def test_a_training_saves_once_for_a_notice_and_goes_on(make_job: Make, alone: Worker) -> None:
    job = make_job(save_steps=8)
    facts = train(job, replace(alone, notice=from_step(3, IN_AN_HOUR)))
    assert facts["ended"]
    assert FolderStorage(job.work).steps() == [4, 8]
    (line,) = (line for line in read_history(job.work / HISTORY) if "10.0.0.1" in str(line))
    assert line["step"] == 4
    assert line["note"].startswith("node 10.0.0.1 will be preempted at ")


def test_a_training_that_left_continues_with_the_same_bits(make_job: Make, alone: Worker) -> None:
    job, undisturbed = make_job("left", save_steps=8), make_job("undisturbed", save_steps=8)
    train(undisturbed, alone)
    with pytest.raises(PreemptedError):
        train(job, replace(alone, notice=from_step(3, UNKNOWN)))
    assert FolderStorage(job.work).steps() == [4]
    assert train(job, alone)["resumed_from"] == 4
    check_same_bits(job, undisturbed)
    notes = [line["note"] for line in read_history(job.work / HISTORY) if "10.0.0.1" in str(line)]
    assert notes == [
        "node 10.0.0.1 will be preempted: saved step 4",
        "saved step 4, leaving node 10.0.0.1: the workers start again elsewhere",
    ]


def test_a_training_that_is_at_its_end_does_not_leave(make_job: Make, alone: Worker) -> None:
    assert train(make_job(), replace(alone, notice=from_step(7, UNKNOWN)))["ended"]
