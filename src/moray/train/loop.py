"""The training loop that runs on every worker."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moray import machine
from moray.config.schema.train import Train
from moray.errors import UserError
from moray.model.forward import common_precision
from moray.rows.loader import Shard, row_positions
from moray.storage.interface import Storage
from moray.storage.open import open_storage
from moray.train.checkpoint.keep import newest_step
from moray.train.checkpoint.resume import resume
from moray.train.checkpoint.save import Saver
from moray.train.engine import build, compute_deterministically
from moray.train.failures import DIVERGED, collective_timeout, exit_on_stall, explain_failures
from moray.train.micro_batch import halve_on_out_of_memory, with_micro_batch_size
from moray.train.performance import MeanLoss, Stopwatch, manual_gc, profiled
from moray.train.preemption import Notices
from moray.train.proof import FirstStep, loss_of_few
from moray.train.schedule import learning_rate
from moray.train.spec import RunSpec
from moray.train.step import (
    describe_mixture,
    feeds,
    gradients,
    held_out,
    held_out_loss,
    mean_loss,
    mixture_of,
    prepare,
    rows_of,
)
from moray.train.strategies import make_strategy
from moray.train.supervision import Request, Requests, prunes_of
from moray.train.task import Task, task_of
from moray.workers.collectives import sum_over_workers
from moray.workers.entry import Worker
from moray.workers.preemption import PreemptedError

# Of `logging_steps: auto`: steps between lines of a long run, and lines of a short one.
_LONGEST_INTERVAL = 10
_LINES = 20


def train(spec: RunSpec, worker: Worker) -> dict[str, Any]:
    """Train a run to its end, from its newest checkpoint if there is one.

    Returns:
        Facts of the training for `train.json`; the same on all workers.

    Raises:
        UserError: on all workers, if a gradient is not finite (nothing has been saved since), or
            if the disk is full.
        PreemptedError: on all workers, if a node is about to be preempted; the last step is saved.
    """
    torch.set_num_threads(spec.threads)
    configured, spec = spec, with_micro_batch_size(spec, worker)
    if spec.settings.deterministic:
        compute_deterministically(worker.device)
    storage = open_storage(spec.work, spec.remote)
    with (
        explain_failures(spec, worker) as reached,
        nullcontext() if spec is configured else halve_on_out_of_memory(spec, worker),
        storage.sole_writer() if worker.rank == 0 else nullcontext(),
        manual_gc() as collect,
        exit_on_stall(spec.work, worker.rank, spec.settings.stall_timeout) as alive,
        profiled(spec.settings, spec.work, worker) as next_step,
    ):
        return _train(spec, worker, storage, (alive, next_step), reached, collect)


def _train(
    spec: RunSpec,
    worker: Worker,
    storage: Storage,
    begin_step: Sequence[Callable[[], None]],
    reached: Callable[[int], None],
    collect: Callable[[], None],
) -> dict[str, Any]:
    task, validation = task_of(spec.store, spec.task_settings), held_out(spec)
    precision = common_precision(_precision(spec, task, worker), worker.device)
    settings = spec.settings.model_copy(update={"precision": precision})
    spec = replace(spec, settings=settings)
    mixture = mixture_of(spec.parts, settings)
    num_steps = settings.max_steps or mixture.num_steps(settings.num_epochs)

    strategy = make_strategy(settings, worker)
    size = settings.global_batch_size
    built = build(spec, worker, strategy, task, num_steps * size)
    losses = MeanLoss(worker)
    first_step, history, evaluations = resume(
        spec, worker, storage, strategy, built.statistics, losses, num_steps
    )
    if history:
        notes = [describe_mixture(spec, mixture, num_steps), built.note]
        for note in filter(None, [spec.note] if first_step else notes):
            history.append(step=first_step, num_steps=num_steps, note=note)
    notices = Notices(worker.notice)
    places = Requests(storage.run_place), prunes_of(storage.records.place), notices
    saver = Saver(storage, settings.save_total_limit, collective_timeout(settings))
    stopwatch = Stopwatch(
        worker, task.unit, size * task.units_per_row, size * built.flops_per_row, first_step
    )
    shard = Shard(first_step, num_steps, worker.rank, worker.world_size)
    rows, where = rows_of(spec, task, mixture, shard), row_positions(mixture, shard)

    def evaluate() -> dict[str, float]:
        return {
            dataset: held_out_loss(strategy, task, split, settings, worker)
            for dataset, split in validation.items()
        }

    if first_step == 0 and validation:
        start = mean_loss(spec.parts, evaluate())
        if history:
            note = f"validation loss before training {start:.4f}"
            history.append(step=0, num_steps=num_steps, note=note, start_loss=start)
    proof = None
    if first_step == 0 and spec.proofs != "off":
        proof = FirstStep(
            spec, worker, strategy, task, mixture, history, built.flops_per_row, num_steps * size
        )

    done = looked_at = saved_step = first_step
    reached(done)
    # What was computed before isn't a part of the first steps.
    stopwatch.start(done)
    request = Request.NONE
    largest_norm = torch.zeros((), device=worker.device)
    # Of the worker with the most rows, if the number of workers doesn't divide them.
    count = ceil(ceil(size / worker.world_size) / settings.micro_batch_rows)
    pinned = worker.device.type == "cuda"
    for feed in feeds(task, rows, where, settings.micro_batch_rows, count, pinned):
        if evaluations.stop:
            break
        for begin in begin_step:
            begin()
        _seed_dropout(settings.seed, done, worker.rank)
        # One collective for both: what the loss is averaged over, and the request, which only the
        # first worker reads.
        request = max(place.pending() for place in places) if worker.rank == 0 else Request.NONE
        weight, number = sum_over_workers(torch.tensor((feed.weight, request))).tolist()
        request = Request(number)
        if request is Request.LEAVE and done == saved_step:
            break
        prepare(built.module, feed.batches, weight, settings, worker)
        losses.add(gradients(strategy, feed.batches, weight, settings, worker))
        rate = learning_rate(settings, done, num_steps)
        norm = strategy.step(rate)
        if proof:
            proof.check_gradient(norm)
            proof = None
        built.statistics.average()
        # Keeps NaN and infinity.
        largest_norm = torch.maximum(largest_norm, norm.to(worker.device))
        done += 1
        reached(done)

        due = _due(settings, done, num_steps)
        if request:
            due.add("save")
        # Reading the norm makes the host wait for a GPU, so it isn't read at each step there, but
        # always before something is saved.
        if due or worker.device.type == "cpu":
            if not torch.isfinite(largest_norm):
                saver.finish()
                saved = newest_step(storage)
                raise _not_finite(looked_at + 1, done, largest_norm, saved)
            looked_at = done
        if not due:
            continue
        largest_norm.zero_()
        stopwatch.stop(done)
        if "log" in due:
            mean = losses.take()
            if history:
                history.append(
                    step=done,
                    num_steps=num_steps,
                    epoch=done * size / mixture.num_rows,
                    loss=mean,
                    learning_rate=rate,
                    grad_norm=norm.item(),
                    **stopwatch.speed(),
                )
        if "evaluate" in due and validation:
            held_out_losses = evaluate()
            evaluations.losses[done] = mean_loss(spec.parts, held_out_losses)
            each: dict[str, Any] = {}
            if len(held_out_losses) > 1:
                each["eval_losses"] = held_out_losses
            if spec.proofs != "off":
                each["eval_sample"] = loss_of_few(spec, strategy, task, validation, worker)
            if history:
                history.append(
                    step=done,
                    num_steps=num_steps,
                    eval_loss=evaluations.losses[done],
                    **each,
                )
        best = evaluations.best if settings.load_best_model_at_end else None
        if "save" in due or best == done or evaluations.stop:
            if history:
                history.sync()
            saver.save(done, strategy.state() | built.statistics.state() | losses.state(), best)
            saved_step = done
        if request:
            saver.finish()
            if history and (news := notices.describe(done)):
                history.append(step=done, num_steps=num_steps, note=news)
            if worker.rank == 0:
                for place in places:
                    place.done(request)
        if request in (Request.LEAVE, Request.PRUNE, Request.STOP):
            break
        collect()
        stopwatch.start(done)
    saver.finish()
    best = evaluations.best if settings.load_best_model_at_end else None
    ended = evaluations.stop or done == num_steps
    if request is Request.LEAVE and not ended:
        if history:
            note = notices.describe_leaving(done)
            history.append(step=done, num_steps=num_steps, note=note)
        raise PreemptedError(f"at step {done}")
    exported = done if best is None else best
    if history and evaluations.best and ended and done > first_step:
        history.compare_exported(evaluations.losses, evaluations.best, exported, num_steps)
    return {
        "steps": done,
        "exported_step": exported,
        "ended": ended,
        "pruned": request is Request.PRUNE,
        "resumed_from": first_step,
        "precision": precision,
        "compiled": built.compiled,
        "trained": built.trained.facts,
        "device": worker.device.type,
        "machine": machine.description(),
        "num_workers": worker.world_size,
    }


def _precision(spec: RunSpec, task: Task, worker: Worker) -> str:
    fault = task.fault_of_bf16_on_cpu if worker.device.type == "cpu" else None
    settings = spec.settings
    if fault and settings.precision == "bf16":
        raise UserError("train.precision", f"bf16 can't be used on CPUs: {fault}", "set it to auto")
    if fault and settings.weights == "bf16":
        raise UserError("train.weights", f"bf16 can't be used on CPUs: {fault}", "set it to fp32")
    if fault:
        return "fp32"
    # Weights in bf16 are multiplied in bf16, whatever the hardware.
    in_bf16 = "bf16" in (settings.weights, spec.adapter and spec.adapter.base_dtype)
    return "bf16" if in_bf16 else settings.precision


def _due(settings: Train, done: int, num_steps: int) -> set[str]:
    """What to do after a step; after the last one, everything."""
    automatic = max(1, min(_LONGEST_INTERVAL, num_steps // _LINES))
    intervals = {
        "log": automatic if settings.logging_steps == "auto" else settings.logging_steps,
        "evaluate": settings.eval_steps,
        "save": settings.save_steps,
    }
    due = {name for name, steps in intervals.items() if done % steps == 0 or done == num_steps}
    # An evaluated step can be the last or the best one, so its training loss is logged too.
    return due | {"log"} if "evaluate" in due else due


def _seed_dropout(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of the step, so that a resumed run draws the same numbers."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))


def _not_finite(first: int, last: int, norm: Tensor, saved: int) -> UserError:
    steps = f"step {last}" if first == last else f"one of steps {first} to {last}"
    return UserError(
        DIVERGED,
        f"got a gradient norm of {norm.item()} at {steps}, expected a finite one",
        "lower it, or check the data of that step; "
        + (f"the checkpoint of step {saved} is intact" if saved else "no checkpoint was saved yet"),
    )
