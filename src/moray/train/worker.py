"""The training loop: what every worker does, whoever starts it."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moray.config.schema import Train
from moray.errors import UserError
from moray.provenance.manifest import damaged_files, read_manifest
from moray.tokens.loader import Share, from_memory, from_stream
from moray.tokens.order import Order
from moray.tokens.rows import Rows
from moray.tokens.store import Split
from moray.train import checkpoint
from moray.train.build import build
from moray.train.collectives import from_first_worker, sum_over_workers
from moray.train.early_stopping import Evaluations
from moray.train.feed import feeds
from moray.train.history import History, evaluations
from moray.train.job import Job, Place
from moray.train.lock import sole_writer
from moray.train.memory import collect, collected_when_asked, keep_freed_memory
from moray.train.precision import resolve
from moray.train.saver import Saver, read_state
from moray.train.schedule import learning_rate
from moray.train.step import gradients, held_out_loss
from moray.train.strategies import Strategy, make_strategy
from moray.train.throughput import Stopwatch


def train(job: Job, place: Place) -> dict[str, Any]:
    """Train a run to its end, from its newest checkpoint if there is one.

    Returns:
        Facts of the training for `train.json`; the same on all workers but for the times.

    Raises:
        UserError: if the loss or the gradient is not finite; nothing was saved since.
    """
    torch.set_num_threads(job.threads)
    keep_freed_memory()
    with sole_writer(job.work) if place.rank == 0 else nullcontext(), collected_when_asked():
        return _train(job, place)


def _train(job: Job, place: Place) -> dict[str, Any]:
    settings = job.settings
    manifest, held_out = read_manifest(job.tokens), Split(job.tokens, "validation")
    order = Order(manifest["splits"]["train"]["windows"], settings.global_batch_size, settings.seed)
    num_steps = settings.max_steps or order.num_steps(settings.num_epochs)
    step_tokens = settings.global_batch_size * held_out.block_size

    strategy = make_strategy(settings, place)
    built = build(job, place, strategy, held_out.block_size, num_steps * step_tokens)
    first_step, history, judged = _resume(job, place, strategy)
    if history and first_step == 0:
        history.append(step=0, num_steps=num_steps, note=built.note)
    saver = Saver(checkpoint.folder_of(job.work), settings.save_total_limit)
    stopwatch, done = Stopwatch(place, step_tokens, built.flops_per_token, first_step), first_step
    rows = _rows(job, order, Share(first_step, num_steps, place.rank, place.world_size))

    largest_norm = torch.zeros((), device=place.device)
    for feed in feeds(rows, settings.micro_batch_size):
        if judged.stop:
            break
        _seed_dropout(settings.seed, done, place.rank)
        loss = gradients(strategy, feed, settings, place)
        rate = learning_rate(settings, done, num_steps)
        norm = strategy.step(rate)
        # NaN and infinity stay.
        largest_norm = torch.maximum(largest_norm, norm.to(place.device))
        done += 1

        due = _due(settings, done, num_steps)
        # Looking at it makes the host wait for a GPU, so not at each step there; nothing is saved
        # before it was looked at.
        if (due or place.device.type == "cpu") and not torch.isfinite(largest_norm):
            saver.finish()
            raise _not_finite(done, largest_norm)
        if not due:
            continue
        largest_norm.zero_()
        stopwatch.stop(done)
        if "log" in due:
            mean = sum_over_workers(loss).item()
            if history:
                history.append(
                    step=done,
                    num_steps=num_steps,
                    epoch=done * settings.global_batch_size / order.num_rows,
                    loss=mean,
                    learning_rate=rate,
                    grad_norm=norm.item(),
                    **stopwatch.speed(),
                )
        if "evaluate" in due and len(held_out):
            judged.losses[done] = held_out_loss(strategy, held_out, settings, place)
            if history:
                history.append(step=done, num_steps=num_steps, eval_loss=judged.losses[done])
        best = judged.best if settings.load_best_model_at_end else None
        if "save" in due or best == done or judged.stop:
            if history:
                history.sync()
            saver.save(done, strategy.state(), best)
        collect()
        stopwatch.start(done)
    saver.finish()
    best = judged.best if settings.load_best_model_at_end else None
    return {
        "steps": done,
        "exported_step": done if best is None else best,
        "resumed_from": first_step,
        "precision": resolve(settings.precision, place.device),
        "compiled": built.compiled,
        "device": place.device.type,
        "num_workers": place.world_size,
    }


def _due(settings: Train, done: int, num_steps: int) -> set[str]:
    """What is done after a step; after the last one, all of it."""
    intervals = {
        "log": settings.logging_steps,
        "evaluate": settings.eval_steps,
        "save": settings.save_steps,
    }
    due = {name for name, steps in intervals.items() if done % steps == 0 or done == num_steps}
    # A run may end with an evaluation, and its best step be one: each has its loss too.
    return due | {"log"} if "evaluate" in due else due


def _rows(job: Job, order: Order, share: Share) -> Iterator[Rows]:
    if job.rows_url is None:
        return from_memory(Split(job.tokens, "train"), order, share)
    return from_stream(job.tokens, job.rows_url, order, share)


def _resume(job: Job, place: Place, strategy: Strategy) -> tuple[int, History | None, Evaluations]:
    """Take up the newest sound checkpoint: the steps done, their history and evaluations."""
    folder = checkpoint.folder_of(job.work)
    # The first worker decides: on a shared file system the others might not see all yet.
    step = from_first_worker(lambda: _resume_point(job, folder))
    if step:
        strategy.restore(lambda state: read_state(checkpoint.path_of(folder, step), state))
    history = History(job.work, step) if place.rank == 0 else None
    losses = from_first_worker(lambda: evaluations(job.work, until=step))
    return step, history, Evaluations(job.settings.early_stopping_patience, losses)


def _resume_point(job: Job, folder: Path) -> int:
    """The step of the newest sound checkpoint whose best one, where that counts, is sound too."""
    step = checkpoint.resume_point(folder, _tell_skipped)
    while step and job.settings.load_best_model_at_end:
        best = Evaluations(None, evaluations(job.work, until=step)).best
        if best is None or not damaged_files(checkpoint.path_of(folder, best)):
            break
        # What was lost has to be trained anew.
        checkpoint.remove_from(folder, best)
        step = checkpoint.resume_point(folder, _tell_skipped)
    return step


def _tell_skipped(path: Path, damaged: list[str]) -> None:
    print(f"skipped {path}: damaged {', '.join(damaged)}", flush=True)


def _seed_dropout(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of the step, so that a resumed run draws what it would have."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))


def _not_finite(step: int, norm: Tensor) -> UserError:
    return UserError(
        "train.learning_rate",
        f"got a gradient norm of {norm.item()} at step {step}, expected a finite one",
        "lower it, or look at the data of that step; the last checkpoint is intact",
    )
