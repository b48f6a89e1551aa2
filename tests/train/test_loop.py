"""The loop: its loss, its resumption, its end."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checkpoints import tensors_of
from plain import documents_of, losses_one_by_one
from transformers import AutoModelForCausalLM

from moray.errors import UserError
from moray.provenance.manifest import damaged_files
from moray.rows.sample import sample
from moray.storage.folder import FolderStorage
from moray.storage.paths import folder_of, path_of, step_of
from moray.tasks.language.rows import StoredSplit
from moray.train import checkpoints
from moray.train.history import HISTORY, History, read_history
from moray.train.job import Job
from moray.train.loop import train
from moray.train.saver import Saver
from moray.train.supervision import Request, prunes_of
from moray.workers.worker import Worker


def losses(job: Job) -> list[float]:
    return [line["loss"] for line in read_history(job.work / HISTORY) if "loss" in line]


def weights(job: Job) -> dict[str, torch.Tensor]:
    storage = FolderStorage(job.work)
    step = checkpoints.newest(storage, lambda step, names: None)
    assert step
    return tensors_of(storage.fetch(step))


def test_losses_are_those_of_plain_transformers_on_separate_documents(
    make_job: Any, alone: Worker
) -> None:
    job = make_job()
    train(job, alone)
    assert losses(job) == pytest.approx(losses_one_by_one(job), rel=1e-4)


def test_the_micro_batch_changes_nothing_but_rounding(make_job: Any, alone: Worker) -> None:
    whole, parts = make_job("whole", micro_batch_size=8), make_job("parts", micro_batch_size=3)
    train(whole, alone)
    train(parts, alone)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)


class CrashError(Exception):
    """The end of a worker, in the middle of a run."""


@pytest.mark.parametrize("crash_at", [pytest.param(2, marks=pytest.mark.long), 6])
def test_a_resumed_run_ends_with_the_same_bits(
    crash_at: int, make_job: Any, alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: Saver) -> None:
        finish(self)
        if path_of(folder_of(resumed.work), crash_at).exists():
            raise CrashError

    finish = Saver.finish
    undisturbed, resumed = make_job("undisturbed"), make_job("resumed")
    train(undisturbed, alone)
    monkeypatch.setattr(Saver, "finish", crash)
    with pytest.raises(CrashError):
        train(resumed, alone)
    monkeypatch.setattr(Saver, "finish", finish)
    facts = train(resumed, alone)
    assert facts["resumed_from"] == crash_at
    assert losses(resumed) == losses(undisturbed)
    expected = weights(undisturbed)
    for name, value in weights(resumed).items():
        assert torch.equal(value, expected[name])


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    make_job: Any, alone: Worker
) -> None:
    job = make_job()
    train(job, alone)
    expected = losses(job)
    newest = path_of(folder_of(job.work), 8)
    (newest / "__0_0.distcp").write_bytes(b"")
    assert train(job, alone)["resumed_from"] == 6
    assert losses(job) == expected
    notes = [line["note"] for line in read_history(job.work / HISTORY) if "note" in line]
    assert notes[-1] == "skipped checkpoint step-00000008: damaged __0_0.distcp"


def test_a_finished_run_is_not_trained_again(make_job: Any, alone: Worker) -> None:
    job = make_job()
    train(job, alone)
    assert train(job, alone)["resumed_from"] == 8


def test_a_loss_that_is_not_finite_stops_before_the_step(make_job: Any, alone: Worker) -> None:
    job = make_job(learning_rate=1e30, max_grad_norm=1e30, warmup_ratio=0)
    with pytest.raises(UserError, match=r"at step 2, expected a finite one; .* no checkpoint was"):
        train(job, alone)
    assert not list(folder_of(job.work).glob("*"))


def test_the_line_of_a_loss_that_is_not_finite_names_the_last_good_checkpoint(
    make_job: Any, alone: Worker
) -> None:
    job = make_job(learning_rate=1e30, max_grad_norm=1e30, warmup_ratio=0.6, save_steps=1)
    with pytest.raises(UserError, match=r"at step 2, .* the checkpoint of step 1 is intact"):
        train(job, alone)
    assert damaged_files(path_of(folder_of(job.work), 1)) == []


def test_a_checkpoint_is_saved_when_it_is_asked_for_and_the_request_goes(
    make_job: Any, alone: Worker
) -> None:
    undisturbed, job = make_job("undisturbed"), make_job(save_steps=100, save_total_limit=9)
    train(undisturbed, alone)
    (job.work.parent / "save").touch()
    facts = train(job, alone)
    assert facts["ended"]
    steps = [step_of(path) for path in folder_of(job.work).iterdir()]
    assert sorted(steps) == [1, 8]
    assert not (job.work.parent / "save").exists()
    assert losses(job) == losses(undisturbed)


def test_a_training_that_is_asked_to_stop_saves_first_and_goes_on_with_the_same_bits(
    make_job: Any, alone: Worker
) -> None:
    undisturbed, job = make_job("undisturbed"), make_job(save_steps=100)
    train(undisturbed, alone)
    (job.work.parent / "stop").touch()
    facts = train(job, alone)
    assert (facts["ended"], facts["steps"]) == (False, 1)
    assert not (job.work.parent / "stop").exists()
    assert train(job, alone)["resumed_from"] == 1
    assert losses(job) == losses(undisturbed)
    ours, theirs = weights(job), weights(undisturbed)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_trial_that_is_pruned_saves_first_and_the_run_is_not_stopped(
    make_job: Any, alone: Worker
) -> None:
    job = make_job(save_steps=100)
    prunes_of(job.work).ask(Request.PRUNE)
    facts = train(job, alone)
    assert (facts["ended"], facts["pruned"], facts["steps"]) == (False, True, 1)
    facts = train(job, alone)
    assert (facts["ended"], facts["pruned"], facts["resumed_from"]) == (True, False, 1)


def overfitting(make_job: Any, name: str, **settings: Any) -> Job:
    """A job whose validation loss soon rises."""
    # A rate that rises until the model breaks.
    keys = {"max_steps": 60, "learning_rate": 3.0, "warmup_ratio": 0.99}
    job: Job = make_job(name, eval_steps=5, save_steps=20, **keys, **settings)
    return job


def evaluations(job: Job) -> dict[int, float]:
    lines = read_history(job.work / HISTORY)
    return {line["step"]: line["eval_loss"] for line in lines if "eval_loss" in line}


def test_a_run_stops_early_and_exports_its_best_model(make_job: Any, alone: Worker) -> None:
    whole = overfitting(make_job, "whole")
    train(whole, alone)
    stopped = overfitting(
        make_job, "stopped", early_stopping_patience=3, load_best_model_at_end=True
    )
    facts = train(stopped, alone)
    found = evaluations(stopped)
    best = min(found, key=lambda step: found[step])
    assert facts["steps"] == best + 15 < 60
    assert found == {step: loss for step, loss in evaluations(whole).items() if step <= best + 15}
    assert facts["exported_step"] == best
    assert path_of(folder_of(stopped.work), best).is_dir()
    again = train(stopped, alone)
    assert (again["steps"], again["exported_step"]) == (best + 15, best)


def test_a_lost_best_checkpoint_is_trained_again(make_job: Any, alone: Worker) -> None:
    job = overfitting(make_job, "job", load_best_model_at_end=True, save_total_limit=1)
    best = train(job, alone)["exported_step"]
    folder = folder_of(job.work)
    (path_of(folder, best) / "manifest.json").unlink()
    again = train(job, alone)
    assert (again["resumed_from"], again["exported_step"]) == (0, best)
    notes = [line["note"] for line in read_history(job.work / HISTORY) if "note" in line]
    assert f"skipped checkpoint step-{best:08d}: damaged manifest.json" in notes
    assert not damaged_files(path_of(folder, best))


def test_a_run_that_ends_with_an_evaluation_has_a_loss_there(make_job: Any, alone: Worker) -> None:
    job = overfitting(make_job, "job", early_stopping_patience=1, logging_steps=1000)
    done = train(job, alone)["steps"]
    assert done < 60
    assert [line["step"] for line in read_history(job.work / HISTORY) if "loss" in line][-1] == done


def test_the_best_checkpoint_outlives_newer_ones(make_job: Any, alone: Worker) -> None:
    job = overfitting(make_job, "job", load_best_model_at_end=True, save_total_limit=1)
    facts = train(job, alone)
    kept = {step_of(path) for path in folder_of(job.work).iterdir()}
    assert kept == {facts["exported_step"], 60}
    assert facts["exported_step"] < 60


def test_rows_longer_than_the_model_is_meant_for_are_refused(
    make_job: Any, alone: Worker, small: Path, tmp_path: Path
) -> None:
    start = tmp_path / "short"
    shutil.copytree(small / "model", start)
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 63}))
    with pytest.raises(UserError, match=r"data\.block_size: got 64, expected at most the 63"):
        train(replace(make_job(), start=start), alone)


def test_the_held_out_loss_is_a_mean_over_the_tokens_of_a_sample(
    make_job: Any, alone: Worker
) -> None:
    job = make_job(max_steps=1, learning_rate=1e-12, eval_rows=3)
    train(job, alone)
    line = next(line for line in read_history(job.work / HISTORY) if "eval_loss" in line)
    model = AutoModelForCausalLM.from_pretrained(job.start, dtype=torch.float32)
    split, total, count = StoredSplit(job.store, "validation"), 0.0, 0
    rows = sample(len(split), 3).tolist()
    assert rows != [0, 1, 2], "the first rows, which hold the longest pieces, are no sample"
    for row in rows:
        for tokens, mask in documents_of(split, row):
            with torch.no_grad():
                logits = model(input_ids=tokens.unsqueeze(0)).logits[0, :-1]
            nll = F.cross_entropy(logits, tokens[1:], reduction="none")
            total += float(nll[mask[1:]].sum())
            count += int(mask[1:].sum())
    assert line["eval_loss"] == pytest.approx(total / count, rel=1e-5)


def test_dropout_is_a_function_of_the_step(
    make_job: Any, alone: Worker, small: Path, tmp_path: Path
) -> None:
    """A resumed run draws the dropout that an undisturbed one would have drawn."""
    start = tmp_path / "with-dropout"
    shutil.copytree(small / "model", start)
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    first, second = (replace(make_job(name), start=start) for name in ("first", "second"))
    train(first, alone)
    torch.rand(7)
    train(second, alone)
    assert losses(first) == losses(second)
    plain = make_job("plain")
    train(plain, alone)
    assert losses(first)[0] != losses(plain)[0]


def test_the_history_is_on_the_disk_before_a_checkpoint_is(
    make_job: Any, alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    save = Saver.save
    monkeypatch.setattr(History, "sync", lambda history: done.append("sync"))

    def saved(saver: Saver, *arguments: Any) -> None:
        done.append("save")
        save(saver, *arguments)

    monkeypatch.setattr(Saver, "save", saved)
    train(make_job(), alone)
    assert done == ["sync", "save"] * 4
