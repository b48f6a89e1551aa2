"""The training loop: what every worker does, whoever starts it."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moray.config.schema import Train
from moray.errors import UserError
from moray.model.load import check_isolation, check_length, load_model
from moray.model.loss import TokenLoss
from moray.provenance.manifest import read_manifest
from moray.tokens.batch import make_batch, num_trained
from moray.tokens.loader import Share, from_memory, from_stream
from moray.tokens.order import Order
from moray.tokens.rows import Rows
from moray.tokens.store import Split
from moray.train import checkpoint
from moray.train.history import History
from moray.train.job import Job, Place
from moray.train.lock import sole_writer
from moray.train.optimizer import make_optimizer
from moray.train.precision import autocast, resolve
from moray.train.schedule import learning_rate
from moray.train.strategies import DistributedDataParallelStrategy, Strategy


def train(job: Job, place: Place) -> dict[str, Any]:
    """Train a run to its end, from its newest checkpoint if there is one.

    Returns:
        Facts of the training for `train.json`; the same on all workers but for the times.

    Raises:
        UserError: if the loss or the gradient is not finite; the step was not taken.
    """
    with sole_writer(job.work) if place.rank == 0 else nullcontext():
        return _train(job, place)


def _train(job: Job, place: Place) -> dict[str, Any]:
    torch.set_num_threads(job.threads)
    settings = job.settings
    manifest, held_out = read_manifest(job.tokens), Split(job.tokens, "validation")
    order = Order(manifest["splits"]["train"]["windows"], settings.global_batch_size, settings.seed)
    num_steps = settings.max_steps or order.num_steps(settings.num_epochs)

    model = load_model(job.start)
    check_isolation(model)
    check_length(model, held_out.block_size)
    strategy = DistributedDataParallelStrategy(place.rank, place.world_size)
    module = strategy.wrap(TokenLoss(model.to(place.device)))
    optimizer = make_optimizer(module, settings)
    first_step = _resume(job, place, strategy, module, optimizer)
    history = History(job.work, first_step) if place.rank == 0 else None

    step_tokens = settings.global_batch_size * held_out.block_size
    seconds, timed = 0.0, 0
    mine = _rows(job, order, Share(first_step, num_steps, place.rank, place.world_size))
    for step in range(first_step, num_steps):
        began = time.perf_counter()
        _seed_dropout(settings.seed, step, place.rank)
        loss = _gradients(module.train(), strategy, next(mine), settings, place)
        norm = nn.utils.clip_grad_norm_(module.parameters(), settings.max_grad_norm)
        if not torch.isfinite(norm):
            raise _not_finite(step, norm)
        rate = learning_rate(settings, step, num_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - began
        timed += 1

        done = step + 1
        last = done == num_steps
        if done % settings.logging_steps == 0 or last:
            mean = strategy.sum(loss).item()
            if history:
                history.append(
                    step=done,
                    num_steps=num_steps,
                    epoch=done * settings.global_batch_size / order.num_rows,
                    loss=mean,
                    learning_rate=rate,
                    grad_norm=norm.item(),
                    tokens_per_second=timed * step_tokens / seconds,
                    step_seconds=seconds / timed,
                )
            seconds, timed = 0.0, 0
        if len(held_out) and (done % settings.eval_steps == 0 or last):
            eval_loss = _held_out_loss(module, strategy, held_out, settings, place)
            if history:
                history.append(step=done, num_steps=num_steps, eval_loss=eval_loss)
        if done % settings.save_steps == 0 or last:
            _save(job, place, strategy, module, optimizer, history, done)
    return {
        "steps": num_steps,
        "resumed_from": first_step,
        "precision": resolve(settings.precision, place.device),
        "device": place.device.type,
        "num_workers": place.world_size,
    }


def _rows(job: Job, order: Order, share: Share) -> Iterator[Rows]:
    if job.rows_url is None:
        return from_memory(Split(job.tokens, "train"), order, share)
    return from_stream(job.tokens, job.rows_url, order, share)


def _gradients(
    module: nn.Module, strategy: Strategy, mine: Rows, settings: Train, place: Place
) -> Tensor:
    """Accumulate the gradient of the step's mean loss over all of its tokens, on all workers.

    Returns:
        This worker's share of that loss, shape ().
    """
    # Workers that see more trained tokens weigh more: the sum is divided by the tokens of the
    # whole step, and the mean over workers that the strategy takes is undone.
    step_tokens = strategy.sum(torch.tensor(num_trained(mine), device=place.device))
    starts = range(0, len(mine), settings.micro_batch_size)
    total = torch.zeros((), device=place.device)
    for start in starts:
        batch = make_batch(mine[start : start + settings.micro_batch_size])
        last = start == starts[-1]
        with nullcontext() if last else strategy.no_sync(module):
            with autocast(settings.precision, place.device):
                loss = module(batch.to(place.device)).sum() / step_tokens
            (loss * place.world_size).backward()
        total += loss.detach()
    return total


@torch.no_grad()
def _held_out_loss(
    module: nn.Module, strategy: Strategy, split: Split, settings: Train, place: Place
) -> float:
    """Mean loss over the tokens of the first `eval_rows` rows, in nats."""
    rows = np.arange(min(settings.eval_rows, len(split)))
    mine = np.array_split(rows, place.world_size)[place.rank]
    module.eval()
    total = torch.zeros((), device=place.device)
    for start in range(0, len(mine), settings.micro_batch_size):
        batch = make_batch(split.rows[mine[start : start + settings.micro_batch_size]])
        with autocast(settings.precision, place.device):
            total += module(batch.to(place.device)).sum()
    return strategy.sum(total).item() / num_trained(split.rows[rows])


def _resume(
    job: Job, place: Place, strategy: Strategy, module: nn.Module, optimizer: torch.optim.Optimizer
) -> int:
    """Take up the newest sound checkpoint; returns the number of steps that are done."""
    folder, name = checkpoint.folder_of(job.work), ""
    # The first worker decides: on a shared file system the others might not see all yet.
    if place.rank == 0:
        found = checkpoint.newest(folder, _tell_skipped)
        name = found.name if found else ""
        checkpoint.remove_newer(folder, checkpoint.step_of(found) if found else 0)
    name = strategy.agree(name)
    if not name:
        return 0
    strategy.load(module, optimizer, folder / name)
    return checkpoint.step_of(folder / name)


def _tell_skipped(path: Path, damaged: list[str]) -> None:
    print(f"skipped {path}: damaged {', '.join(damaged)}", flush=True)


def _save(
    job: Job,
    place: Place,
    strategy: Strategy,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    history: History | None,
    done: int,
) -> None:
    folder, name = checkpoint.folder_of(job.work), ""
    if history:
        history.sync()
        name = checkpoint.temporary_folder(folder, done).name
    temporary = folder / strategy.agree(name)
    strategy.save(module, optimizer, temporary)
    if history:
        checkpoint.commit(folder, done, temporary)
        checkpoint.remove_old(folder, job.settings.save_total_limit)
    place.committed(done)


def _seed_dropout(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of the step, so that a resumed run draws what it would have."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))


def _not_finite(step: int, norm: Tensor) -> UserError:
    return UserError(
        "train.learning_rate",
        f"got a gradient norm of {norm.item()} at step {step + 1}, expected a finite one",
        "lower it, or look at the data of that step; the last checkpoint is intact",
    )
