"""Distributed data parallel: every worker has the whole model."""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from moray.train.optimizer import Moment
from moray.train.strategies import Strategy
from moray.train.task import LossModule


class _DDP(Strategy):
    """PyTorch's DDP; with one worker, the plain module."""

    def wrap(self, module: LossModule) -> None:
        self.module = self.loss_module = module.to(self._worker.device)
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
        self._make_optimizer(module.model)

    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        return nullcontext()

    def state(self) -> dict[str, Tensor | Moment]:
        # All workers have the same state, so each writes a part.
        state = self._optimizer.training_state(self._model, self._torch_optimizer)
        by_size = sorted(state, key=lambda name: state[name].numel())
        mine = by_size[self._worker.rank :: self._worker.world_size]
        return {name: state[name] for name in mine}


strategy = _DDP
