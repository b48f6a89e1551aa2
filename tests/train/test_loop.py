"""The loop: its loss, its resumption, its end; and the keys that show in what it does."""

import gzip
import json
import math
import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import check_resumption, check_same_bits, train_and_crash
from fleet import losses
from plain import losses_one_by_one
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from moray.config.schema.train import Train
from moray.errors import UserError
from moray.provenance.manifest import damaged_files
from moray.rows.store import sample
from moray.storage.interface import folder_of, path_of, step_of
from moray.tasks.language.proofs.plain import log_probabilities, pieces_of
from moray.tasks.language.rows import StoredSplit
from moray.train.history import HISTORY, evaluations, read_history
from moray.train.loop import _due, train
from moray.train.spec import RunSpec
from moray.train.supervision import Request, prunes_of
from moray.workers.entry import Worker


def notes(job: RunSpec) -> list[str]:
    return [line["note"] for line in read_history(job.work / HISTORY) if "note" in line]


def steps(job: RunSpec, key: str) -> list[int]:
    """The steps whose lines of the history have a key."""
    return [line["step"] for line in read_history(job.work / HISTORY) if key in line]


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


@pytest.mark.parametrize("crash_at", [pytest.param(2, marks=pytest.mark.long), 6])
def test_a_resumed_run_ends_with_the_same_bits(crash_at: int, make_job: Any, alone: Worker) -> None:
    check_resumption(make_job, alone, crash_at)


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
    assert notes(job)[-1] == "skipped checkpoint step-00000008: damaged __0_0.distcp"


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
    check_same_bits(job, undisturbed)


def test_a_trial_that_is_pruned_saves_first_and_the_run_is_not_stopped(
    make_job: Any, alone: Worker
) -> None:
    job = make_job(save_steps=100)
    prunes_of(job.work).ask(Request.PRUNE)
    facts = train(job, alone)
    assert (facts["ended"], facts["pruned"], facts["steps"]) == (False, True, 1)
    facts = train(job, alone)
    assert (facts["ended"], facts["pruned"], facts["resumed_from"]) == (True, False, 1)


def overfitting(make_job: Any, name: str, **settings: Any) -> RunSpec:
    """A job whose validation loss soon rises."""
    # A rate that rises until the model breaks.
    keys = {"max_steps": 60, "learning_rate": 3.0, "warmup_ratio": 0.99}
    job: RunSpec = make_job(name, eval_steps=5, save_steps=20, **keys, **settings)
    return job


def test_a_run_stops_early_and_exports_its_best_model(make_job: Any, alone: Worker) -> None:
    whole = overfitting(make_job, "whole")
    train(whole, alone)
    stopped = overfitting(
        make_job, "stopped", early_stopping_patience=3, load_best_model_at_end=True
    )
    facts = train(stopped, alone)
    found = evaluations(stopped.work, until=60)
    best = min(found, key=lambda step: found[step])
    assert facts["steps"] == best + 15 < 60
    assert found == {
        step: loss for step, loss in evaluations(whole.work, until=60).items() if step <= best + 15
    }
    assert facts["exported_step"] == best
    assert path_of(folder_of(stopped.work), best).is_dir()
    again = train(stopped, alone)
    assert (again["steps"], again["exported_step"]) == (best + 15, best)


def test_a_start_that_no_checkpoint_is_better_than_is_named(make_job: Any, alone: Worker) -> None:
    keys = {"load_best_model_at_end": True, "warmup_ratio": 0}
    worse, better = make_job("worse", learning_rate=3.0, **keys), make_job("better", **keys)
    # It evaluates the start, to rounding.
    still = make_job("still", learning_rate=1e-12, **keys)
    for job in (worse, better, still):
        train(job, alone)
    start = evaluations(still.work, until=8)[4]
    found = evaluations(worse.work, until=8)
    best = min(found, key=lambda step: found[step])
    assert notes(worse)[-1] == (
        "warning: no checkpoint is better than the model that the run starts from: validation loss "
        f"{start:.4f} before training, {found[best]:.4f} at step {best}, the best"
    )
    assert f"validation loss before training {start:.4f}" in notes(better)
    assert not any(note.startswith("warning") for note in notes(better))
    train(worse, alone)
    assert sum(note.startswith("warning") for note in notes(worse)) == 1


def test_a_last_step_that_is_worse_than_an_earlier_one_is_named(
    make_job: Any, alone: Worker
) -> None:
    last = overfitting(make_job, "last")
    train(last, alone)
    found = evaluations(last.work, until=10**6)
    best, end = min(found, key=lambda step: found[step]), max(found)
    assert found[end] > 1.01 * found[best]
    assert notes(last)[-1] == (
        f"warning: the validation loss was {found[best]:.4f} at step {best}, and is "
        f"{found[end]:.4f} at step {end}, which is exported; train.load_best_model_at_end: true "
        "exports the best"
    )
    exported = overfitting(make_job, "best", load_best_model_at_end=True)
    train(exported, alone)
    assert not any(note.startswith("warning") for note in notes(exported))


def test_the_loss_before_training_is_kept_by_a_resumed_run(make_job: Any, alone: Worker) -> None:
    keys = {"load_best_model_at_end": True, "warmup_ratio": 0, "learning_rate": 3.0}
    undisturbed, job = make_job("undisturbed", **keys), make_job("job", **keys)
    train(undisturbed, alone)
    train_and_crash(job, alone, 6)
    train(job, alone)
    assert notes(job)[-1] == notes(undisturbed)[-1]
    assert notes(job)[-1].startswith("warning: no checkpoint is better")
    check_same_bits(job, undisturbed)


@pytest.mark.long
def test_the_best_checkpoint_outlives_newer_ones_and_is_trained_again_if_it_is_lost(
    make_job: Any, alone: Worker
) -> None:
    job = overfitting(make_job, "job", load_best_model_at_end=True, save_total_limit=1)
    best = train(job, alone)["exported_step"]
    folder = folder_of(job.work)
    assert {step_of(path) for path in folder.iterdir()} == {best, 60}
    assert best < 60
    (path_of(folder, best) / "manifest.json").unlink()
    again = train(job, alone)
    assert (again["resumed_from"], again["exported_step"]) == (0, best)
    assert f"skipped checkpoint step-{best:08d}: damaged manifest.json" in notes(job)
    assert not damaged_files(path_of(folder, best))


def test_a_run_that_ends_with_an_evaluation_has_a_loss_there(make_job: Any, alone: Worker) -> None:
    job = overfitting(make_job, "job", early_stopping_patience=1, logging_steps=1000)
    done = train(job, alone)["steps"]
    assert done < 60
    assert steps(job, "loss")[-1] == done


def model_with(small: Path, folder: Path, **keys: object) -> Path:
    """A copy of the model with other keys in its config."""
    start = Path(shutil.copytree(small / "model", folder / "start"))
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(config | keys))
    return start


def test_rows_longer_than_the_model_is_meant_for_are_refused(
    make_job: Any, alone: Worker, small: Path, tmp_path: Path
) -> None:
    start = model_with(small, tmp_path, max_position_embeddings=63)
    with pytest.raises(
        UserError, match=r"data\.block_size: makes sequences of 64 tokens, expected at most 63"
    ):
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
    for piece in pieces_of(split.rows[rows]):
        with torch.no_grad():
            scores = log_probabilities(model, *piece)
        total -= float(scores.sum())
        count += len(scores)
    assert line["eval_loss"] == pytest.approx(total / count, rel=1e-5)


def test_dropout_is_a_function_of_the_step(
    make_job: Any, alone: Worker, small: Path, tmp_path: Path
) -> None:
    """A resumed run draws the dropout that an undisturbed one would have drawn."""
    start = model_with(small, tmp_path, attention_dropout=0.5)
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
    flushed: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    train(make_job(), alone)
    saved = [number for number, name in enumerate(flushed) if name == "__0_0.distcp"]
    assert len(saved) == 4
    # The next steps may have been written too, as tensors are saved in another thread.
    for number, place in enumerate(saved, 1):
        assert flushed[:place].count(HISTORY) >= number


# Keys of the `train` section that show in what a run does, not in its losses.


def test_lines_evaluations_and_checkpoints_come_at_their_steps(
    make_job: Any, alone: Worker
) -> None:
    job = make_job(logging_steps=3, eval_steps=5, save_steps=2, save_total_limit=3)
    train(job, alone)
    # A step that is evaluated has a line too; after the last step, all of it is due.
    assert steps(job, "loss") == [3, 5, 6, 8]
    assert steps(job, "eval_loss") == [5, 8]
    kept = sorted(path.name for path in (job.work / "checkpoints").iterdir())
    assert kept == ["step-00000004", "step-00000006", "step-00000008"]


@pytest.mark.parametrize(
    ("num_steps", "interval"), [(5, 1), (39, 1), (40, 2), (199, 9), (200, 10), (10_000, 10)]
)
def test_a_short_run_has_as_many_lines_as_a_curve_needs(num_steps: int, interval: int) -> None:
    logged = [step for step in range(1, num_steps) if "log" in _due(Train(), step, num_steps)]
    evaluated = range(Train().eval_steps, num_steps, Train().eval_steps)
    assert logged == sorted({*range(interval, num_steps, interval), *evaluated})


def test_a_run_is_evaluated_before_its_first_step(make_job: Any, alone: Worker) -> None:
    job = make_job(eval_steps=1, learning_rate=1e-30)
    train(job, alone)
    lines = [*read_history(job.work / HISTORY)]
    (start,) = (line["start_loss"] for line in lines if "start_loss" in line)
    after = [line["eval_loss"] for line in lines if "eval_loss" in line]
    # Steps that change nothing.
    assert after == pytest.approx([start] * len(after), rel=1e-6)


@pytest.mark.parametrize("crash_at", [None, 4])
def test_a_line_has_the_mean_loss_of_the_steps_since_the_last_one(
    crash_at: int | None, make_job: Any, alone: Worker
) -> None:
    each, job = make_job("each"), make_job(logging_steps=3, eval_steps=5, save_steps=4)
    train(each, alone)
    # What was saved at step 4 lies between two lines.
    if crash_at:
        train_and_crash(job, alone, crash_at)
    assert train(job, alone)["resumed_from"] == (crash_at or 0)
    one = losses(each)
    means = [math.fsum(one[start:end]) / (end - start) for start, end in pairwise((0, 3, 5, 6, 8))]
    assert losses(job) == means


@pytest.mark.parametrize("num_epochs", [0.5, pytest.param(2, marks=pytest.mark.release)])
def test_without_max_steps_a_run_has_so_many_epochs(
    make_job: Any, alone: Worker, num_epochs: float
) -> None:
    job = make_job(max_steps=None, num_epochs=num_epochs, global_batch_size=4)
    done = train(job, alone)["steps"]
    last = [line for line in read_history(job.work / HISTORY) if "epoch" in line][-1]
    rows = done * 4 / last["epoch"]
    assert done == math.ceil(round(num_epochs * rows) / 4)


@pytest.mark.long
def test_a_profile_has_so_many_steps_and_changes_nothing(make_job: Any, alone: Worker) -> None:
    plain, profiled = make_job("plain"), make_job("profiled", profile={"steps": 2})
    for job in (plain, profiled):
        train(job, alone)
    assert losses(profiled) == losses(plain)
    with gzip.open(profiled.work / "profile/worker-0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event["name"].startswith("ProfilerStep#") for event in events) == 2
    assert "aten::mm" in {event["name"] for event in events}
    assert not (plain.work / "profile").exists()


def test_the_seed_decides_the_order_of_the_samples(make_job: Any, alone: Worker) -> None:
    jobs = [make_job(f"seed-{seed}", seed=seed, max_steps=1) for seed in (0, 1)]
    for job in jobs:
        train(job, alone)
    assert losses(jobs[0]) != losses(jobs[1])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_forward_pass_is_in_the_precision_of_the_config(
    make_job: Any, alone: Worker, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    kinds, forward = set(), LlamaMLP.forward

    def looked_at(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = forward(self, x)
        kinds.add(result.dtype)
        return result

    monkeypatch.setattr(LlamaMLP, "forward", looked_at)
    train(make_job(max_steps=1, precision=precision), alone)
    assert (torch.bfloat16 in kinds) is (precision == "bf16")


@pytest.mark.parametrize(("checkpointing", "times"), [(False, 1), (True, 2), ("offload", 2)])
def test_with_gradient_checkpointing_the_backward_pass_computes_blocks_again(
    make_job: Any,
    alone: Worker,
    monkeypatch: pytest.MonkeyPatch,
    checkpointing: bool | str,
    times: int,
) -> None:
    calls, forward = 0, LlamaMLP.forward

    def counted(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += x.requires_grad
        result: torch.Tensor = forward(self, x)
        return result

    monkeypatch.setattr(LlamaMLP, "forward", counted)
    settings = {"max_steps": 3, "micro_batch_size": 8, "gradient_checkpointing": checkpointing}
    train(replace(make_job(**settings), proofs="off"), alone)
    # Two blocks, a pass in each of three steps.
    assert calls == times * 2 * 3


@pytest.mark.parametrize(("size", "batches"), [(8, 1), (3, 3)])
def test_a_forward_pass_takes_the_rows_of_a_micro_batch(
    make_job: Any, alone: Worker, monkeypatch: pytest.MonkeyPatch, size: int, batches: int
) -> None:
    passed, forward = [], LlamaMLP.forward

    def recorded(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            passed.append(len(x))
        result: torch.Tensor = forward(self, x)
        return result

    monkeypatch.setattr(LlamaMLP, "forward", recorded)
    train(replace(make_job(max_steps=2, micro_batch_size=size), proofs="off"), alone)
    # Each through two blocks, in each of two steps; the last one is filled up.
    assert passed == [size] * batches * 2 * 2
