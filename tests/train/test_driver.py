"""A run from the outside: what is reported before workers start, and requests."""

import json
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from jobs import train_run

from moray.config.schema.train import Adapter
from moray.errors import ConfigError, UserError
from moray.train.history import read_history


def test_layers_that_the_model_does_not_have_are_reported_before_workers_start(
    make_job: Any, small: Path, tmp_path: Path
) -> None:
    job = make_job(adapter=Adapter(target_modules=["q_prj"]))
    with pytest.raises(ConfigError, match=r"adapter\.target_modules: got q_prj, .* q_proj\?$"):
        train_run(job, small, tmp_path / "output", job.settings, num_workers=1)
    assert not list(job.work.iterdir())


def test_new_tokens_that_cannot_be_sharded_are_reported_before_workers_start(
    make_job: Any, small: Path, tmp_path: Path
) -> None:
    """Of a start that another run has exported."""
    shutil.copytree(small, tmp_path / "small")
    file = tmp_path / "small/model/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"new_token_ids": [3]}))
    job = make_job(adapter=Adapter(), strategy="deepspeed")
    with pytest.raises(ConfigError, match=r"the rows of new_token_ids in .* can't be sharded"):
        train_run(job, tmp_path / "small", tmp_path / "output", job.settings, num_workers=1)


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


@pytest.mark.long
def test_a_run_that_stops_early_ends_with_the_reason(
    make_job: Any, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one of epochs that can't says so when it starts."""
    keys = {"max_steps": 60, "learning_rate": 3.0, "warmup_ratio": 0.99, "eval_steps": 5}
    job = make_job(early_stopping_patience=3, launcher="torchrun", **keys)
    train_run(job, small, tmp_path / "output", job.settings, num_workers=1)
    losses = {
        line["step"]: line["eval_loss"]
        for line in read_history(tmp_path / "output/history.jsonl")
        if "eval_loss" in line
    }
    best, last = min(losses, key=lambda step: losses[step]), max(losses)
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"run name: {last} of 60 steps, stopped early since 3 evaluations had no lower validation "
        f"loss than step {best} ({losses[best]:.4f}), loss "
    )
    epochs = {"max_steps": None, "num_epochs": 0.5, "early_stopping_patience": 50}
    settings = job.settings.model_copy(update={**epochs, "learning_rate": 1e-3})
    train_run(job, small, tmp_path / "epochs", settings, num_workers=1)
    lines = capsys.readouterr().err.splitlines()
    planned = next(line for line in lines if re.match(r"run name: \d+ steps for 0\.5 epochs", line))
    warning = "warning: runs.name.train.early_stopping_patience: got 50, which can't stop the run: "
    assert lines[lines.index(planned) + 1].startswith(warning)
    assert re.match(r"run name: \d+ steps, loss", lines[-1])


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
