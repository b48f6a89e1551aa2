"""The computations of the loop: gradients of a step, and held-out loss."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from moray.config.schema import Train
from moray.model.precision import autocast
from moray.rows.sample import sample
from moray.rows.store import StoredRows
from moray.tasks.interface import Batch, Task
from moray.train.engine.compilation import uncompiled
from moray.train.engine.strategies import Strategy
from moray.train.feed import micro_batches
from moray.workers.collectives import sum_over_workers
from moray.workers.worker import Worker


def gradients(
    strategy: Strategy, batches: Sequence[Batch], weight: float, settings: Train, worker: Worker
) -> Tensor:
    """Accumulate the gradient of the step's mean loss over all workers and micro-batches.

    Args:
        strategy: has the module and its gradients.
        batches: this worker's micro-batches.
        weight: what the loss is averaged over: the sum of `Task.weight` over all workers.
        settings: the `train` section.
        worker: this worker.

    Returns:
        This worker's share of that loss, shape ().
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


@torch.no_grad()
def held_out_loss(
    strategy: Strategy, task: Task, split: StoredRows, settings: Train, worker: Worker
) -> float:
    """Mean loss over a sample of `eval_rows` rows."""
    # Not the first rows: they can differ from the others, as packed ones do.
    rows = split.rows[sample(len(split), settings.eval_rows)]
    mine = np.array_split(rows, worker.world_size)[worker.rank]
    most = -(-len(rows) // worker.world_size)
    total = torch.zeros((), device=worker.device)
    strategy.module.eval()
    # Evaluation is rare: compiling for it would take longer than it saves.
    with uncompiled():
        for batch in micro_batches(
            task, mine, settings.micro_batch_size, count=-(-most // settings.micro_batch_size)
        ):
            with autocast(settings.precision, worker.device):
                total += strategy.module(batch.to(worker.device))
    strategy.module.train()
    return sum_over_workers(total).item() / task.weight(rows)
