"""DeepSpeed's ZeRO: shards optimizer state, then gradients, then parameters."""

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from moray.config.schema.train import Train
from moray.errors import UserError
from moray.model.forward import resolve
from moray.train.optimizer import Moment, set_learning_rate, state_name, trained_parameters
from moray.train.strategies import Read, Strategy
from moray.train.task import LossModule
from moray.workers.collectives import together
from moray.workers.entry import Worker

# Number of parameters that each worker has in full at a time while reading a checkpoint.
_READ_AT_ONCE = 16


class _DeepSpeed(Strategy):
    """ZeRO (Rajbhandari et al., 2020), stage 1, 2 or 3."""

    # DeepSpeed's engine, which wraps the module, and its optimizer; neither has types.
    _engine: Any
    _zero: Any

    def __init__(self, settings: Train, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._stage = settings.deepspeed.zero_stage

    def wrap(self, module: LossModule) -> None:
        deepspeed = together(lambda: _library(self._worker.device))
        torch_optimizer = self._optimizer.make(module.model)
        external = module.external_parameters()
        self._engine, self._zero, *_ = deepspeed.initialize(
            model=module, optimizer=torch_optimizer, config=self._config(), dist_init_required=False
        )
        self.module, self.loss_module = self._engine, module
        self._model = module.model
        if self._stage == 3:
            for parameter in external:
                deepspeed.zero.register_external_parameter(module, parameter)
            masters = self._zero.fp32_partitioned_groups_flat
            self._optimizer.make_state(self._zero.optimizer, masters)
        else:
            masters = self._zero.single_partition_of_fp32_groups
            self._optimizer.make_state(self._zero.optimizer, masters)
            self._zero._lazy_init_hp_params_optimizer_state()

    def _config(self) -> dict[str, Any]:
        settings, deepspeed = self._settings, self._settings.deepspeed
        zero: dict[str, Any] = {
            "stage": self._stage,
            "overlap_comm": False,
            # Stage 3 rounds parameters that it doesn't shard to bf16 at each step, but not when a
            # checkpoint is restored, so the weights of a resumed run would differ.
            "stage3_param_persistence_threshold": 0,
        }
        if deepspeed.offload_optimizer:
            zero["offload_optimizer"] = {"device": "cpu"}
        if deepspeed.offload_parameters:
            zero["offload_param"] = {"device": "cpu"}
        return {
            "train_micro_batch_size_per_gpu": settings.micro_batch_rows,
            # The loop decides when to step.
            "managed_gradient_accumulation": False,
            "gradient_clipping": settings.max_grad_norm,
            "zero_optimization": zero,
            # Its own AdamW is compiled on first use.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "torch_autocast": {
                "enabled": resolve(settings.precision, self._worker.device) == "bf16",
                "dtype": "bfloat16",
            },
        }

    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        # Stages 2 and 3 reduce gradients in `backward`, 1 in `step`.
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss)

    def step(self, learning_rate: float) -> Tensor:
        set_learning_rate(self._zero, learning_rate)
        # Without a step if the norm is not finite.
        self._engine.step()
        return torch.as_tensor(self._engine.get_global_grad_norm(), dtype=torch.float32)

    def state(self) -> dict[str, Tensor | Moment]:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        # The same for all weights.
        numbers = next(iter(self._zero.optimizer.state.values()))
        state: dict[str, Tensor | Moment] = {}
        # Gathered one tensor at a time; each worker keeps a part.
        for number, (name, parameter) in enumerate(trained_parameters(self._model).items()):
            mine = number % self._worker.world_size == self._worker.rank
            if mine:
                state |= {state_name(name, key): numbers[key] for key in self._optimizer.numbers}
            for key in (None, *self._optimizer.moments):
                value = (
                    safe_get_full_optimizer_state(parameter, key)
                    if key
                    else safe_get_full_fp32_param(parameter)
                )
                if mine:
                    state[state_name(name, key) if key else name] = value.cpu()
        return state

    def restore(self, read: Read) -> None:
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        parameters = list(trained_parameters(self._model).items())
        for start in range(0, len(parameters), _READ_AT_ONCE):
            some = parameters[start : start + _READ_AT_ONCE]
            whole = {}
            for name, parameter in some:
                shape = getattr(parameter, "ds_shape", parameter.shape)
                whole[name] = torch.empty(shape)
                whole |= {
                    state_name(name, key): torch.empty(shape) for key in self._optimizer.moments
                }
                whole |= {state_name(name, key): torch.empty(()) for key in self._optimizer.numbers}
            read(whole)
            for name, parameter in some:
                self._fill(parameter, whole[name])
                safe_set_full_fp32_param(parameter, whole[name])
                for key in self._optimizer.moments:
                    safe_set_full_optimizer_state(parameter, whole[state_name(name, key)], key)
        for state in self._zero.optimizer.state.values():
            for key in self._optimizer.numbers:
                state[key].copy_(whole[state_name(parameters[-1][0], key)])

    def _fill(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Set the parameter of the forward pass, which is not the optimizer's copy."""
        import deepspeed

        with (
            deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)
            if self._stage == 3
            else nullcontext(),
            torch.no_grad(),
        ):
            if self._stage < 3 or self._worker.rank == 0:
                parameter.copy_(value)


def _library(device: torch.device) -> Any:
    # Otherwise DeepSpeed uses any GPU it finds, even if the run is on the CPU.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    try:
        import deepspeed
    except ImportError as error:
        raise UserError(
            "train.strategy",
            "deepspeed is not installed",
            "pip install 'moray[deepspeed]', or choose strategy: fsdp2",
        ) from error
    # It calls functions that PyTorch will rename, twice per step.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    # This op, which speeds up sums on one machine's CPUs, is compiled on first use, with tools that
    # may be missing.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


strategy = _DeepSpeed
