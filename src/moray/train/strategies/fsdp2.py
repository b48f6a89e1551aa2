"""Fully sharded data parallel: every worker has a shard of every tensor."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from transformers import PreTrainedModel

from moray.config import extras
from moray.config.schema.train import Train
from moray.errors import UserError
from moray.model.forward import blocks_of, resolve
from moray.train.optimizer import Moment
from moray.train.strategies import Strategy
from moray.train.task import LossModule
from moray.workers.entry import Worker


class _FSDP2(Strategy):
    """PyTorch's FSDP2, sharded block by block.

    The first worker loads the weights into main memory; the others start empty and get their shards
    from it, so that no device ever has the whole model. With `fsdp2.shard_size`, each group of so
    many workers has a copy of the model (hybrid sharding, HSDP).
    """

    def __init__(self, settings: Train, worker: Worker) -> None:
        super().__init__(settings, worker)
        self.loads_weights = worker.rank == 0

    def wrap(self, module: LossModule) -> None:
        _check_blocks(module.model)
        if getattr(module.model, "is_loaded_in_4bit", False):
            quantized = extras.part(extras.QUANTIZED["4bit"], "base")
            quantized.to_bytes(module.model, self._worker.device)
        weights = dict(module.state_dict()) if self.loads_weights else {}
        buffers = dict(module.named_buffers())
        module.to("meta")
        # Moving a module makes new parameters, which unties tied ones.
        module.model.tie_weights()
        options = self._options()
        for block in blocks_of(module.model):
            fully_shard(block, **options)
        fully_shard(module, **options)
        offload = self._settings.fsdp2.cpu_offload
        module.to_empty(device=torch.device("cpu") if offload else self._worker.device)
        whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(module, weights, options=whole)
        self._fill_buffers(module, buffers)
        self.module = self.loss_module = module
        self._make_optimizer(module.model)

    def _options(self) -> dict[str, Any]:
        settings, worker = self._settings, self._worker
        bf16 = resolve(settings.precision, worker.device) == "bf16"
        return {
            "mesh": _mesh(settings, worker),
            # None: but for what is outside of blocks, which the backward pass needs first.
            "reshard_after_forward": None if settings.fsdp2.reshard_after_forward else False,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=torch.bfloat16 if bf16 else None,
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=worker.device.type == "cuda")
            if settings.fsdp2.cpu_offload
            else OffloadPolicy(),
        }

    def _fill_buffers(self, module: nn.Module, found: dict[str, Tensor]) -> None:
        """Set all buffers, also those missing in state dicts, such as rotary embeddings' angles."""
        for name, buffer in module.named_buffers():
            value = torch.empty_like(buffer, device=self._worker.device)
            if self.loads_weights:
                value.copy_(found[name])
            dist.broadcast(value, src=0)
            owner, _, key = name.rpartition(".")
            setattr(module.get_submodule(owner), key, value)

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        module = self.module
        assert isinstance(module, FSDPModule)
        module.set_requires_gradient_sync(last)
        # What stays gathered after a forward pass stays for the next micro-batch too.
        module.set_reshard_after_backward(last or self._settings.fsdp2.reshard_after_forward)
        yield

    def state(self) -> dict[str, Tensor | Moment]:
        # After an evaluation, which has no backward pass, parameters may still be gathered, and the
        # optimizer knows only the shards.
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return self._optimizer.training_state(self._model, self._torch_optimizer)


def _mesh(settings: Train, worker: Worker) -> DeviceMesh:
    """All workers in a row, or a row for each copy of the model.

    Ranks are consecutive on a node.
    """
    size = settings.fsdp2.shard_size
    if size is None:
        return init_device_mesh(worker.device.type, (worker.world_size,))
    if worker.world_size % size:
        raise UserError(
            "train.fsdp2.shard_size",
            f"got {size}, expected a divisor of the number of workers ({worker.world_size})",
            "change it, or set ray.num_workers",
        )
    return init_device_mesh(
        worker.device.type,
        (worker.world_size // size, size),
        mesh_dim_names=("replicate", "shard"),
    )


def _check_blocks(model: PreTrainedModel) -> None:
    if not blocks_of(model):
        raise UserError(
            "train.strategy",
            "fsdp2 shards a model block by block, but transformers doesn't say which modules of a "
            f"{model.config.model_type} model are its blocks",
            "choose ddp",
        )


strategy = _FSDP2
