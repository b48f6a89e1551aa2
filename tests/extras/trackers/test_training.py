"""A training whose tracker is killed or hangs is as one without a tracker."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from fleet import until
from jobs import training_command

from moray.config.schema.sections import Ray
from moray.config.schema.train import Train
from moray.provenance.manifest import Files, read_manifest
from moray.tracking import following
from moray.train.history import HISTORY

pytestmark = pytest.mark.long

TRAIN = Train(
    max_steps=150,
    global_batch_size=8,
    learning_rate=1e-2,
    precision="fp32",
    launcher="torchrun",
    logging_steps=1,
    save_steps=50,
)


def trained(small: Path, folder: Path, number: signal.Signals | None = None) -> Files:
    """The last checkpoint's files; the tracker gets a signal while the run is at its tenth step."""
    output = folder / "output"
    output.mkdir(parents=True)
    ray = Ray(storage_path=str(folder / "state"), num_workers=1)
    trackers = [] if number is None else ["tensorboard"]
    command = training_command(
        small / "model", small / "tokens", output, TRAIN, ray, tracking=trackers
    )
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as running:
        if number is not None:
            until(lambda: running.poll() is not None or steps(folder) >= 10)
            (tracker,) = (
                child
                for child in psutil.Process(running.pid).children()
                if following.__name__ in child.cmdline()
            )
            os.kill(tracker.pid, number)
        _, said = running.communicate()
    assert running.returncode == 0, said
    assert ("not all metrics reached tensorboard" in said) == (number is not None)
    (checkpoint,) = (folder / "state").glob("name/*/checkpoints/step-00000150")
    files: Files = read_manifest(checkpoint)["files"]
    # The other file has paths.
    return {"tensors": files["__0_0.distcp"]}


def steps(folder: Path) -> int:
    return sum(file.read_text().count("\n") for file in folder.rglob(HISTORY))


@pytest.mark.release
def test_weights_are_the_same_if_its_tracker_is_killed_or_hangs(
    small: Path, tmp_path: Path
) -> None:
    alone = trained(small, tmp_path / "alone")
    assert trained(small, tmp_path / "killed", signal.SIGKILL) == alone
    assert trained(small, tmp_path / "hanging", signal.SIGSTOP) == alone
