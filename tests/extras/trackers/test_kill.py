"""A driver that is killed and started again, with its trackers' real parts."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from fleet import until
from trackers import READERS, Points, environment

from moray.train.history import HISTORY, History, read_history

pytestmark = pytest.mark.release

DRIVER = """
import sys
from pathlib import Path
from typing import Any
from moray.tracking.following import follow_run
from moray.tracking.interface import TrackedRun

run = TrackedRun("tuned", "0123456789ab", {"train": {"learning_rate": 1e-3}})
work = Path.cwd()
with follow_run([sys.argv[1]], run, work, work / "history.jsonl") as ending:
    ending.finished = sys.stdin.readline() == "finished\\n"
"""


def started(tracker: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, tracker],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | environment(folder),
    )


def train(history: History, first: int, last: int) -> None:
    for step in range(first, last + 1):
        history.append(step=step, num_steps=60, loss=1 / step)
        if step % 10 == 0:
            history.append(step=step, num_steps=60, eval_loss=2 / step)


def sent(tracker: str, folder: Path) -> Points:
    # What isn't there yet, or is being written.
    with suppress(Exception):
        return READERS[tracker](folder, "loss")
    return []


@pytest.mark.parametrize("tracker", READERS)
def test_a_run_killed_at_half_and_continued_has_every_step_once(
    tracker: str, tmp_path: Path
) -> None:
    first = History(tmp_path, first_step=0)
    with started(tracker, tmp_path) as driver:
        train(first, 1, 20)
        until(lambda: driver.poll() is not None or len(sent(tracker, tmp_path)) >= 10)
        train(first, 21, 33)
        until(lambda: driver.poll() is not None or len(sent(tracker, tmp_path)) >= 30)
        family = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=60)
    with started(tracker, tmp_path) as driver:
        # From a checkpoint at step 20 on, while the tracker is still at the lines up to step 33.
        second = History(tmp_path, first_step=20)
        train(second, 21, 60)
        _, reported = driver.communicate("finished\n")
    assert (driver.returncode, "didn't get" in reported) == (0, False), reported
    for name in ("loss", "eval_loss"):
        lines = (line for line in read_history(tmp_path / HISTORY) if name in line)
        expected: list[Any] = [(line["step"], pytest.approx(line[name])) for line in lines]
        assert READERS[tracker](tmp_path, name) == expected
    assert len(expected) == 6


@pytest.mark.parametrize("tracker", READERS)
def test_a_run_that_goes_back_while_it_is_followed_has_every_step_once(
    tracker: str, tmp_path: Path
) -> None:
    """As when lost workers are replaced."""
    history = History(tmp_path, first_step=0)
    with started(tracker, tmp_path) as driver:
        train(history, 1, 33)
        until(lambda: driver.poll() is not None or len(sent(tracker, tmp_path)) >= 30)
        train(History(tmp_path, first_step=20), 21, 60)
        _, reported = driver.communicate("finished\n")
    assert (driver.returncode, "didn't get" in reported) == (0, False), reported
    points = READERS[tracker](tmp_path, "loss")
    expected: list[Any] = [(step, pytest.approx(1 / step)) for step in range(1, 61)]
    assert points == expected


def test_the_config_is_there_and_the_run_is_finished(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    train(History(tmp_path, first_step=0), 1, 3)
    client = MlflowClient(environment(tmp_path)["MLFLOW_TRACKING_URI"])
    for word, status in (("stopped\n", "RUNNING"), ("finished\n", "FINISHED")):
        with started("mlflow", tmp_path) as driver:
            driver.communicate(word)
        (run,) = client.search_runs([client.get_experiment_by_name("moray").experiment_id])
        assert run.info.status == status
    assert run.info.run_name == "tuned"
    assert run.data.params == {"train.learning_rate": "0.001"}
    assert json.loads((tmp_path / "tracked.json").read_text())["id"] == run.data.tags["moray.id"]
