"""A fault of one of two workers, wherever it happens, ends the other, which waits for it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import Make

from moray.config.schema.sections import Ray
from moray.errors import UserError
from moray.train.spec import RunSpec
from moray.workers.entry import Worker
from moray.workers.launch import Launch
from moray.workers.run import run_on_workers

# What the loop calls in each phase.
PHASES = {
    "building": "build",
    "reading rows": "rows_of",
    "a step": "gradients",
    "evaluation": "held_out_loss",
    "saving": "Saver.save",
}
MARKS: dict[str, pytest.MarkDecorator] = {
    "building": pytest.mark.release,
    "reading rows": pytest.mark.release,
    "a step": pytest.mark.long,
    "evaluation": pytest.mark.release,
    "saving": pytest.mark.release,
}
# Of calls that succeed before, one of an evaluation before the first step.
CALLS_BEFORE = {"a step": 3, "evaluation": 1, "saving": 1}


def train_with_a_fault(arguments: tuple[RunSpec, str, Exception], worker: Worker) -> Any:
    """Train, but on the second worker fail in a phase."""
    from moray.train import loop

    job, phase, error = arguments
    if worker.rank == 1:
        name, _, method = PHASES[phase].partition(".")
        owner, attribute = (getattr(loop, name), method) if method else (loop, name)
        left = CALLS_BEFORE.get(phase, 0)
        original: Callable[..., Any] = getattr(owner, attribute)

        def faulty(*positional: Any, **named: Any) -> Any:
            nonlocal left
            if left:
                left -= 1
                return original(*positional, **named)
            with (job.work / "attempts").open("a") as file:
                file.write("x")
            raise error

        setattr(owner, attribute, faulty)
    return loop.train(job, worker)


def fail(
    make_job: Make, monkeypatch: pytest.MonkeyPatch, phase: str, error: Exception
) -> tuple[str, int]:
    """The line and the number of attempts of a training that fails so; three retries are left."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    job = make_job()
    launch = Launch(
        Ray(num_workers=2, max_failures=3), "runs.name.ray", job.work, "torchrun", timeout=3600
    )
    with pytest.raises(UserError) as caught:
        run_on_workers(train_with_a_fault, (job, phase, error), launch)
    return str(caught.value), len((job.work / "attempts").read_text())


@pytest.mark.parametrize(
    "phase",
    [pytest.param(phase, marks=MARKS.get(phase, ())) for phase in PHASES],
)
def test_the_first_fault_of_a_worker_ends_both_without_a_retry(
    phase: str, make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one would wait for an hour, and a retry would be a second attempt."""
    fault = UserError("a.key", f"fails in {phase}", "set it right")
    assert fail(make_job, monkeypatch, phase, fault) == (str(fault), 1)


@pytest.mark.long
def test_an_error_that_training_raises_again_at_the_same_step_spends_one_retry(
    make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, attempts = fail(make_job, monkeypatch, "evaluation", IndexError("row 7 of 5"))
    assert (line, attempts) == (
        "IndexError: row 7 of 5 (worker 1, twice in the same way; the last known step is 4); "
        "correct its cause (the traceback is in the log), and run the same command again",
        2,
    )
