"""A streamed run that was killed ends as one from memory does; on a real local Ray."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from jobs import training_command
from small_model import MODEL, write_many_windows

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data, Ray
from moray.config.schema.train import Train
from moray.lines import whole_lines
from moray.stages.base_model import base_model
from moray.tasks.language.rows import StoredSplit
from moray.tasks.language.tokenize import tokenize
from moray.train.history import read_history

pytestmark = pytest.mark.release

STEPS = 50
# The launcher, and when tokens are made. What isn't streamed doesn't need Ray, which takes seconds
# to start.
LOADERS = {"memory": ("torchrun", "ahead"), "stream": ("ray", "on-the-fly")}
TRAIN = Train(
    max_steps=STEPS,
    global_batch_size=8,
    learning_rate=1e-2,
    precision="fp32",
    logging_steps=1,
    eval_steps=25,
    save_steps=10,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` and two stores, by when their tokens are made.

    They have so many windows that a step has rows of several groups.
    """
    folder = tmp_path_factory.mktemp("inputs")
    write_many_windows(folder / "dataset")
    base_model(folder / "model", MODEL, folder / "dataset")
    for _, when in LOADERS.values():
        data = Data.model_validate({"block_size": 64, "tokenize": when, "loader": "stream"})
        cfg = {"format": "prompt-completion", **result_keys(data)}
        tokenize(folder / "dataset", folder / "model", folder / when, cfg)
    assert len(StoredSplit(folder / "ahead", "train").windows) > 16
    return folder


def started(inputs: Path, output: Path, loader: str) -> subprocess.Popen[str]:
    """The stage as a process of its own, with two workers."""
    output.mkdir(exist_ok=True)
    ray = Ray(storage_path=str(output / "state"), num_workers=2)
    launcher, tokens = LOADERS[loader]
    settings = TRAIN.model_copy(update={"launcher": launcher})
    command = training_command(inputs / "model", inputs / tokens, output, settings, ray, loader)
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def finished(inputs: Path, output: Path, loader: str) -> list[tuple[int, float]]:
    """The losses of a run, of each step and of each evaluation."""
    with started(inputs, output, loader) as process:
        reported = process.communicate()[1]
    assert process.returncode == 0, reported
    lines = read_history(output / "history.jsonl")
    return [
        (line["step"], line["loss" if "loss" in line else "eval_loss"])
        for line in lines
        if "note" not in line
    ]


def killed_at(step: int, inputs: Path, output: Path) -> None:
    """SIGKILL to a streamed run and all of its Ray, once the step is done."""
    with started(inputs, output, "stream") as process:
        while process.poll() is None:
            history = next((output / "state").glob("name/*/history.jsonl"), None)
            if history and any(json.loads(x)["step"] >= step for x in whole_lines(history)):
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.01)
        assert process.poll() is None, "the run had ended before it was killed"
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
        for member in family:
            os.kill(member.pid, signal.SIGKILL)
        psutil.wait_procs(family)


def test_killed_and_resumed_it_has_the_losses_of_a_run_from_memory(
    inputs: Path, tmp_path: Path
) -> None:
    expected = finished(inputs, tmp_path / "memory", "memory")
    assert [step for step, _ in expected if step <= STEPS][-1] == STEPS
    killed_at(25, inputs, tmp_path / "killed")
    assert finished(inputs, tmp_path / "killed", "stream") == expected
    record = json.loads((tmp_path / "killed/train.json").read_text())
    assert record["resumed_from"] in (20, 30, 40)
