"""Distributed data parallel: every worker has the whole model."""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from moray.config.schema.train import Train
from moray.tasks.interface import LossModule
from moray.train.adamw_8bit import Blocks
from moray.train.optimizer import Optimizer, trained_parameters
from moray.train.strategies import Read
from moray.workers.entry import Worker


class _DDP:
    """PyTorch's DDP; with one worker, the plain module."""

    module: nn.Module
    loads_weights = True

    def __init__(self, settings: Train, worker: Worker) -> None:
        self._settings = settings
        self._worker = worker
        self._optimizer = Optimizer(settings)

    def wrap(self, module: LossModule) -> None:
        self._model = module.model
        self.module = module.to(self._worker.device)
        if self._worker.world_size > 1:
            self.module = DistributedDataParallel(
                self.module,
                gradient_as_bucket_view=True,
                broadcast_buffers=False,
                # Otherwise DDP rebuilds its buckets after the first step. With three or more
                # workers the order of summation depends on the buckets, so the weights of a resumed
                # run would differ in their last bits.
                find_unused_parameters=True,
            )
        self._made = self._optimizer.make(self._model)
        self._optimizer.make_state(self._made, trained_parameters(self._model).values())

    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float) -> Tensor:
        return self._optimizer.step(self._model, self._made, learning_rate)

    def state(self) -> dict[str, Tensor | Blocks]:
        # All workers have the same state, so each writes a part.
        state = self._optimizer.training_state(self._model, self._made)
        by_size = sorted(state, key=lambda name: state[name].numel())
        mine = by_size[self._worker.rank :: self._worker.world_size]
        return {name: state[name] for name in mine}

    def restore(self, read: Read) -> None:
        self._optimizer.restore(self._model, self._made, read)


strategy = _DDP
