"""A run from the outside, on a real local Ray."""

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tensors_of
from jobs import train_run

from moray.config.schema.train import Adapter
from moray.errors import ConfigError, UserError
from moray.train.history import read_history
from moray.train.loop import train
from moray.workers.entry import Worker


# tests/train/test_equality.py has this under every strategy.
@pytest.mark.release
def test_two_ray_workers_have_the_losses_of_one_process_and_the_run_is_recorded(
    make_job: Any, alone: Worker, small: Path, tmp_path: Path
) -> None:
    job, output = make_job(), tmp_path / "output"
    train(job, alone)
    expected = list(read_history(job.work / "history.jsonl"))
    train_run(job, small, output, job.settings, num_workers=2)
    history = list(read_history(output / "history.jsonl"))
    assert "not compiled: the run is too short" in history[0]["note"]
    assert [line["step"] for line in history] == [line["step"] for line in expected]
    for ours, alone_line in zip(history[1:], expected[1:], strict=True):
        key = "loss" if "loss" in ours else "eval_loss"
        assert ours[key] == pytest.approx(alone_line[key], rel=1e-4)

    record = json.loads((output / "train.json").read_text())
    assert (record["steps"], record["num_workers"], record["resumed_from"]) == (8, 2, 0)
    assert record["train"]["learning_rate"] == 1e-2
    assert "micro_batch_size" not in record["train"]
    assert "model.embed_tokens.weight" in tensors_of(Path(record["checkpoint"]))


def test_layers_that_the_model_does_not_have_are_reported_before_workers_start(
    make_job: Any, small: Path, tmp_path: Path
) -> None:
    job = make_job(adapter=Adapter(target_modules=["q_prj"]))
    with pytest.raises(ConfigError, match=r"adapter\.target_modules: got q_prj, .* q_proj\?$"):
        train_run(job, small, tmp_path / "output", job.settings, num_workers=1)
    assert not list(job.work.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(("asked", "steps"), [(0, 8), (None, 1)])
def test_a_request_counts_if_it_came_since_the_process_did(
    make_job: Any, small: Path, tmp_path: Path, asked: float | None, steps: int
) -> None:
    """None: now. The process is that of the tests."""
    job, stop = make_job(), tmp_path / "work/name/stop"
    stop.parent.mkdir(parents=True)
    stop.touch()
    if asked is not None:
        os.utime(stop, (asked, asked))
    settings = job.settings.model_copy(update={"launcher": "torchrun"})
    with nullcontext() if steps == 8 else pytest.raises(UserError, match="stopped at step 1 as"):
        train_run(job, small, tmp_path / "output", settings, num_workers=1)
    (history,) = stop.parent.glob("*/history.jsonl")
    assert max(line["step"] for line in read_history(history)) == steps
    assert not stop.exists()


def test_a_changed_setting_has_a_work_folder_of_its_own(
    make_job: Any, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Execution-only keys share one: a run goes on with other workers or micro-batches."""
    job = make_job()
    # Refused once the folder is there; a Ray that this process has started sets the variable.
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    nowhere = {"address": "nowhere.invalid:6379"}
    for number, update in enumerate(({}, {"micro_batch_size": 1}, {"learning_rate": 0.5})):
        settings = job.settings.model_copy(update=update)
        with pytest.raises(UserError, match="whose host is unknown"):
            train_run(job, small, tmp_path / f"output-{number}", settings, **nowhere)
        folders = len(list((job.work / "name").iterdir()))
        assert folders == (1, 1, 2)[number]
