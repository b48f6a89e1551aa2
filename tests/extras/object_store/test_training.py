"""A run whose state is in an object store, as its stage trains it, with two workers."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from checkpoints import are_equal, tensors_of
from fleet import until
from jobs import training_command
from object_store import bucket_of
from torch import Tensor, equal

from moray.config.schema.sections import Ray
from moray.config.schema.train import Train
from moray.model.load import load_model
from moray.storage.objects import open_objects
from moray.train.checkpoint.load import trained_model
from moray.train.history import read_history

pytestmark = pytest.mark.long

TRAIN = Train(
    max_steps=40,
    global_batch_size=8,
    learning_rate=1e-2,
    precision="fp32",
    logging_steps=1,
    eval_steps=20,
    save_steps=5,
    launcher="torchrun",
)


@pytest.fixture(scope="module", params=["s3"])
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with bucket_of(request.param, tmp_path_factory.mktemp("bucket")) as url:
        yield url


def started(small: Path, output: Path, storage_path: str, **train: Any) -> subprocess.Popen[str]:
    """The stage as a process of its own, with two workers."""
    output.mkdir(exist_ok=True)
    settings = TRAIN.model_copy(update=train)
    ray = Ray(storage_path=storage_path, num_workers=2, resources_per_worker={"CPU": 0.5})
    command = training_command(small / "model", small / "tokens", output, settings, ray)
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def finished(small: Path, output: Path, storage_path: str, **train: Any) -> str:
    with started(small, output, storage_path, **train) as process:
        reported = process.communicate()[1]
    assert process.returncode == 0, reported
    return reported


def weights(output: Path) -> dict[str, Tensor]:
    record = json.loads((output / "train.json").read_text())
    return tensors_of(Path(record["checkpoint"]))


def losses(output: Path) -> dict[int, float]:
    lines = read_history(output / "history.jsonl")
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def num_committed(url: str) -> int:
    keys = open_objects(url).list_objects("name/")
    return len([key for key in keys if "/commits/" in key])


@pytest.fixture(scope="module")
def undisturbed(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a folder."""
    folder = tmp_path_factory.mktemp("undisturbed")
    finished(small, folder / "output", str(folder / "state"))
    return folder / "output"


@pytest.mark.release
@pytest.mark.parametrize("bucket", ["s3", "gcs"], indirect=True)
def test_a_run_that_is_killed_and_resumed_ends_with_the_bits_of_one_in_a_folder(
    small: Path, bucket: str, undisturbed: Path, tmp_path: Path
) -> None:
    url, output = f"{bucket}/killed", tmp_path / "output"
    with started(small, output, url) as process:
        # A fence and the first checkpoints.
        until(lambda: num_committed(url) >= 3 or process.poll() is not None)
        assert process.poll() is None, "the run had ended before it was killed"
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
        for member in family:
            os.kill(member.pid, 9)
        psutil.wait_procs(family)
    reported = finished(small, output, url)
    assert "waiting 30 s for a sign of life" in reported
    record = json.loads((output / "train.json").read_text())
    assert 10 <= record["resumed_from"] < 40
    assert losses(output) == losses(undisturbed)
    assert are_equal(weights(output), weights(undisturbed))
    # What export reads is here.
    exported = trained_model(small / "model", output / "checkpoint", None)
    start = load_model(small / "model").state_dict()
    assert any(not equal(value, start[name]) for name, value in exported.named_parameters())


@pytest.mark.release
def test_a_request_below_the_url_stops_the_run_and_the_same_command_goes_on(
    small: Path, bucket: str, undisturbed: Path, tmp_path: Path
) -> None:
    url, output = f"{bucket}/stopped", tmp_path / "output"
    with started(small, output, url) as process:
        # Before the first step: a later one may be seen only after the last.
        until(lambda: open_objects(url).list_objects("name/") or process.poll() is not None)
        open_objects(f"{url}/name").put("stop", b"")
        reported = process.communicate()[1]
    assert process.returncode == 1
    assert "as requested, and saved a checkpoint" in reported
    assert open_objects(f"{url}/name").head("stop") is None
    finished(small, output, url)
    assert losses(output) == losses(undisturbed)
    assert are_equal(weights(output), weights(undisturbed))


@pytest.mark.release
def test_a_second_driver_is_refused_in_one_line(small: Path, bucket: str, tmp_path: Path) -> None:
    # The first one must not be finished before the second one has started.
    url, steps = f"{bucket}/two", {"max_steps": 2000}
    with started(small, tmp_path / "first", url, **steps) as first:
        until(lambda: num_committed(url) >= 1 or first.poll() is not None)
        with started(small, tmp_path / "second", url, **steps) as second:
            reported = second.communicate()[1]
        assert second.returncode == 1
        (line,) = (line for line in reported.splitlines() if "has been training this run" in line)
        assert f"process {first.pid} on" in line
        open_objects(f"{url}/name").put("stop", b"")
        reported = first.communicate()[1]
    assert "as requested, and saved a checkpoint" in reported


@pytest.mark.release
def test_a_changed_run_says_where_its_checkpoints_are_and_continues_from_one(
    small: Path, bucket: str, tmp_path: Path
) -> None:
    url, last_modified = f"{bucket}/changed", {"learning_rate": 5e-3}
    finished(small, tmp_path / "before", url, max_steps=10)
    reported = finished(small, tmp_path / "over", url, max_steps=5, **last_modified)
    key = "runs.name.train.resume_from_checkpoint: "
    (line,) = (line for line in reported.splitlines() if key in line)
    given = line.partition(key)[2]
    assert given.startswith(f"{url}/name/")
    assert given.endswith("/checkpoints/step-00000010")
    keys = {**last_modified, "resume_from_checkpoint": given}
    finished(small, tmp_path / "after", url, max_steps=15, **keys)
    record = json.loads((tmp_path / "after/train.json").read_text())
    assert record["resumed_from"] == 10
    assert record["continued_from"]["checkpoint"] == given
    before, after = losses(tmp_path / "before"), losses(tmp_path / "after")
    assert [after[step] for step in before] == list(before.values())
    assert len(after) == 15
