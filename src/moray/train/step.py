"""A step: its rows, its batches, which are prepared one step ahead, and its gradients."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moray.background import prefetch
from moray.config.schema.train import Train
from moray.model.forward import autocast
from moray.provenance.manifest import read_manifest
from moray.rows.loader import Shard, from_memory, from_stream
from moray.rows.order import Mixture
from moray.rows.store import RowPositions, Rows, StoredRows, sample
from moray.train.kernels import uncompiled
from moray.train.spec import Part, RunSpec
from moray.train.strategies import Strategy
from moray.train.task import Batch, LossModule, Task
from moray.workers.collectives import from_first_worker, sum_over_workers
from moray.workers.entry import Worker

# What is computed a second time at each evaluation.
_MOST_ROWS, _MOST_TOKENS = 16, 512


def mixture_of(parts: Sequence[Part], settings: Train) -> Mixture:
    """Which rows make up each step of a run.

    The rows of datasets differ in weight (their number of trained tokens, for example), so a
    dataset's share of the rows is its share divided by the mean weight of its rows.
    """
    facts = [_facts(part.store) for part in parts]
    return Mixture(
        [fact["windows"] for fact in facts],
        [
            part.share * fact["rows"] / fact["weight"]
            for part, fact in zip(parts, facts, strict=True)
        ],
        settings.global_batch_size,
        settings.seed,
    )


def _facts(store: Path) -> dict[str, Any]:
    facts: dict[str, Any] = read_manifest(store)["splits"]["train"]
    return facts


def held_out(spec: RunSpec) -> dict[str, StoredRows]:
    """The validation splits that aren't empty, by dataset."""
    splits = {part.dataset: StoredRows(part.store, "validation") for part in spec.parts}
    return {dataset: split for dataset, split in splits.items() if len(split)}


def describe_mixture(spec: RunSpec, mixture: Mixture, num_steps: int) -> str | None:
    """How often the rows of each dataset are seen; None for a single dataset."""
    if len(spec.parts) == 1:
        return None
    total = sum(part.share for part in spec.parts)
    counts = mixture.counts(num_steps)
    texts = (
        f"{part.dataset} {part.share / total:.1%}, each row seen {count / order.num_rows:.2g} times"
        for part, count, order in zip(spec.parts, counts, mixture.orders, strict=True)
    )
    return f"mixture: {'; '.join(texts)}"


def rows_of(spec: RunSpec, task: Task, mixture: Mixture, shard: Shard) -> Iterator[Rows]:
    """The rows that a worker trains on at each step, from memory or streamed."""
    urls = [(part.store, part.rows_url) for part in spec.parts if part.rows_url is not None]
    if not urls:
        return from_memory([StoredRows(part.store, "train") for part in spec.parts], mixture, shard)
    readers = [task.window_reader(store, url) for store, url in urls]
    name = from_first_worker(lambda: uuid.uuid4().hex)
    return from_stream(readers, task.record, mixture, shard, f"moray-{name}")


@dataclass(frozen=True)
class Feed:
    """A worker's part of a step.

    Attributes:
        batches: its micro-batches, all of the same size.
        weight: what the loss of their rows is averaged over, see `Task.weight`.
    """

    batches: list[Batch]
    weight: int


def feeds(
    task: Task,
    rows: Iterator[Rows],
    row_positions: Iterator[RowPositions],
    micro_batch_size: int,
    count: int | None = None,
    pinned: bool = False,
) -> Iterator[Feed]:
    """A worker's part of each step; the next one is prepared while the current one is used.

    Args:
        micro_batch_size: maximum rows in a batch.
        count: minimum number of batches in a step, see `micro_batches`.
        pinned: whether they are in pinned memory, from which a GPU copies while the host goes on.
    """

    def feed(mine: Rows, where: RowPositions) -> Feed:
        batches = micro_batches(task, mine, micro_batch_size, count, where)
        if pinned:
            batches = [batch.pin_memory() for batch in batches]
        return Feed(batches, task.weight(mine))

    return prefetch(feed(mine, where) for mine, where in zip(rows, row_positions, strict=False))


def micro_batches(
    task: Task,
    rows: Rows,
    size: int,
    count: int | None = None,
    row_positions: RowPositions | None = None,
) -> list[Batch]:
    """Rows in batches of the same size, so that code compiled for that size works for all.

    Rows that are padded to the longest of their batch are sorted by length, for less padding.

    Args:
        rows: shape (rows,).
        size: maximum rows in a batch.
        count: minimum number of batches; workers that shard a model need the same number.
        row_positions: where in the order's sequence the rows are; None for held-out rows.
    """
    count = max(count or 1, -(-len(rows) // size))
    # A worker may have none.
    size = max(1, -(-len(rows) // count))
    missing = count * size - len(rows)
    if count > 1 and "length" in (rows.dtype.names or ()):
        longest = rows["length"].reshape(len(rows), -1).max(axis=1).astype(np.int64)
        by_length = np.argsort(-longest, kind="stable")
        rows = rows[by_length]
        if row_positions is not None:
            row_positions = row_positions.at(by_length)
    padded = np.concatenate([rows, np.zeros(missing, rows.dtype)])
    parts: list[RowPositions | None] = [None] * count
    if row_positions is not None:
        positions = np.concatenate([row_positions.positions, np.zeros(missing, np.int64)])
        parts = [RowPositions(row_positions.seed, part) for part in np.split(positions, count)]
    return [task.batch(one, part) for one, part in zip(np.split(padded, count), parts, strict=True)]


def prepare(
    module: LossModule, batches: Sequence[Batch], weight: float, settings: Train, worker: Worker
) -> None:
    """Have a loss prepare for a step, in the precision of its passes."""
    with autocast(settings.precision, worker.device):
        module.begin_step(batches, weight)


def gradients(
    strategy: Strategy, batches: Sequence[Batch], weight: float, settings: Train, worker: Worker
) -> Tensor:
    """Accumulate the gradient of a step's mean loss; returns this worker's share of the loss.

    It is the mean over all workers and micro-batches: `weight` is the sum of their `Task.weight`.
    """
    # Workers whose rows have more weight count for more: the sum is divided by the weight of the
    # whole step, and the strategy's mean over workers is turned back into a sum.
    total = torch.zeros((), device=worker.device)
    for number, batch in enumerate(batches, 1):
        with strategy.micro_batch(last=number == len(batches)):
            with autocast(settings.precision, worker.device):
                loss = strategy.module(batch.to(worker.device)) / weight
            strategy.backward(loss * worker.world_size)
        total += loss.detach()
    return total


def held_out_loss(
    strategy: Strategy, task: Task, split: StoredRows, settings: Train, worker: Worker
) -> float:
    """Mean loss over a sample of `eval_rows` rows."""
    # Not the first rows: they can differ from the others, as packed ones do.
    rows = split.rows[sample(len(split), settings.eval_rows)]
    return loss_of_rows(strategy, task, rows, settings, worker)


def few_held_out(task: Task, split: StoredRows, settings: Train) -> NDArray[np.int64]:
    """Numbers of some rows of that sample, which the exported model is compared on."""
    count = min(_MOST_ROWS, max(1, _MOST_TOKENS // task.units_per_row))
    return sample(len(split), settings.eval_rows)[:count]


@torch.no_grad()
def loss_of_rows(
    strategy: Strategy, task: Task, rows: Rows, settings: Train, worker: Worker
) -> float:
    """Mean loss of rows, which all workers share out, in evaluation mode."""
    mine = np.array_split(rows, worker.world_size)[worker.rank]
    most = -(-len(rows) // worker.world_size)
    total = torch.zeros((), device=worker.device)
    batches = micro_batches(
        task, mine, settings.micro_batch_rows, count=-(-most // settings.micro_batch_rows)
    )
    strategy.module.eval()
    # Evaluation is rare: compiling for it would take longer than it saves.
    with uncompiled():
        prepare(strategy.loss_module, batches, task.weight(rows), settings, worker)
        for batch in batches:
            with autocast(settings.precision, worker.device):
                total += strategy.module(batch.to(worker.device))
    strategy.module.train()
    return sum_over_workers(total).item() / task.weight(rows)


def mean_loss(parts: Sequence[Part], losses: dict[str, float]) -> float:
    """The mean of the datasets' losses, weighted by their shares."""
    shares = {part.dataset: part.share for part in parts if part.dataset in losses}
    return sum(shares[name] * loss for name, loss in losses.items()) / sum(shares.values())
