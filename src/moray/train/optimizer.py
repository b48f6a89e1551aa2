"""The optimizer: the state that it keeps, the memory that it takes, and its step.

Strategies, checkpoints and checks know its state from here alone. Checks come before anything slow,
so PyTorch is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, Self

from moray.config import extras
from moray.config.schema.train import OptimizerName, Train

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel

# Bytes of state for a weight: in a matrix of a block, and elsewhere. Adafactor's two vectors for
# each matrix don't count.
_STATE: dict[OptimizerName, tuple[int, int]] = {
    "adamw": (8, 8),
    "adamw_8bit": (2, 2),
    "muon": (4, 8),
    "adafactor": (0, 0),
}
# The same in a checkpoint, where all is in fp32.
_SAVED = _STATE | {"adamw_8bit": _STATE["adamw"]}
# Moments that aren't tensors and are read from a checkpoint, in fp32, at a time.
_READ_AT_ONCE = 16


class Moment(Protocol):
    """Stands for a moment in fp32, like a parameter and sharded like it, but takes less memory."""

    def numel(self) -> int:
        """The number of elements over all workers."""

    def __getitem__(self, part: slice) -> Self:
        """A view of some of the elements that this worker has."""

    def empty(self) -> Tensor:
        """An fp32 tensor for the values, in main memory."""

    def dequantized(self) -> Tensor:
        """The values in fp32, in main memory."""

    def quantize(self, values: Tensor) -> None:
        """Set the values; those that were dequantized are set exactly."""

    def step(
        self,
        square: Self,
        weights: Tensor,
        gradients: Tensor,
        number: int,
        group: Mapping[str, Any],
    ) -> None:
        """Take a step of AdamW with this mean of the gradient; see `adamw.step_shard`."""


class Optimizer:
    """The optimizer of a run: AdamW (Loshchilov and Hutter, 2019), or that of an extra.

    Attributes:
        moments: what AdamW keeps for a weight, by PyTorch's names: fp32 tensors of the weight's
            shape, or each a `Moment` that stands for one.
        numbers: tensors of shape () that it keeps for a weight in addition.
    """

    moments = ("exp_avg", "exp_avg_sq")
    numbers = ("step",)

    def __init__(self, settings: Train) -> None:
        self._settings = settings

    def state_bytes(self, trained: int, in_matrices: int) -> int:
        """Bytes of state; numbers don't count, and scales of quantized moments don't either.

        Args:
            trained: number of trained parameters.
            in_matrices: how many of them are in `block_matrices`.
        """
        return _bytes(_STATE[self._settings.optimizer], trained, in_matrices)

    def saved_bytes(self, trained: int, in_matrices: int) -> int:
        """The same in a checkpoint."""
        return _bytes(_SAVED[self._settings.optimizer], trained, in_matrices)

    @property
    def _extra(self) -> ModuleType | None:
        """The module of an optimizer other than PyTorch's AdamW."""
        folder = extras.OPTIMIZERS.get(self._settings.optimizer)
        return extras.part(folder, "optimizer") if folder else None

    @property
    def _rounding(self) -> ModuleType | None:
        """The module that steps weights of another type than fp32."""
        folder = extras.WEIGHTS.get(self._settings.weights)
        return extras.part(folder, "rounding") if folder else None

    def make(self, model: nn.Module) -> torch.optim.Optimizer:
        """PyTorch's optimizer over all trainable parameters.

        Raises:
            UserError: if the optimizer isn't one for this model.
        """
        settings, extra = self._settings, self._extra
        ratios = [1.0, *([settings.loraplus_lr_ratio] if settings.loraplus_lr_ratio else [])]
        groups: list[dict[str, Any]] = [
            {"params": [], "weight_decay": decay, "lr_ratio": ratio}
            for ratio in ratios
            for decay in (settings.weight_decay, 0.0)
        ]
        for name, parameter in trained_parameters(model).items():
            # As in LoRA+.
            faster = 2 * (len(ratios) > 1 and ".lora_B." in name)
            groups[faster + (not _is_decayed(name, parameter))]["params"].append(parameter)
        filled = [group for group in groups if group["params"]]
        if extra is None:
            return adamw(filled, settings)
        made: torch.optim.Optimizer = extra.make(model, filled, settings)
        return made

    def make_state(
        self, torch_optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]
    ) -> None:
        """Initialise the state of parameters, as before the first step."""
        import torch

        extra = self._extra
        for parameter in parameters:
            own: dict[str, Tensor | Moment]
            own = extra.state_of(torch_optimizer, parameter) if extra else {}
            # A step of ours takes its number from the host; PyTorch's from the device.
            device = "cpu" if self._rounding else parameter.device
            zeros = partial(torch.zeros_like, parameter, dtype=torch.float32)
            torch_optimizer.state[parameter] = own or {
                **{key: zeros() for key in self.moments},
                **{key: torch.zeros((), device=device) for key in self.numbers},
            }

    def training_state(
        self, model: nn.Module, torch_optimizer: torch.optim.Optimizer
    ) -> dict[str, Tensor | Moment]:
        """Weights and their state, by their names in a checkpoint; they share memory with both."""
        state: dict[str, Tensor | Moment] = {}
        for name, parameter in trained_parameters(model).items():
            state[name] = parameter.detach()
            for key, value in torch_optimizer.state[parameter].items():
                state[state_name(name, key)] = value
        return state

    def restore(
        self,
        model: nn.Module,
        torch_optimizer: torch.optim.Optimizer,
        read: Callable[[dict[str, Tensor]], None],
    ) -> None:
        """Load weights and their state from a checkpoint; `read` fills tensors by their names."""
        from torch import Tensor

        state = self.training_state(model, torch_optimizer)
        read({name: value for name, value in state.items() if isinstance(value, Tensor)})
        others = [(name, value) for name, value in state.items() if not isinstance(value, Tensor)]
        for start in range(0, len(others), _READ_AT_ONCE):
            some = others[start : start + _READ_AT_ONCE]
            values = {name: moment.empty() for name, moment in some}
            read(values)
            for name, moment in some:
                moment.quantize(values[name])

    def step(
        self, model: nn.Module, torch_optimizer: torch.optim.Optimizer, learning_rate: float
    ) -> Tensor:
        """Clip, step, and clear the gradients; returns their norm before clipping, shape ().

        On a CPU, no step is taken if the norm is not finite.
        """
        import torch
        from torch.distributed.tensor import DTensor

        settings, rounding = self._settings, self._rounding
        norm: Tensor
        if rounding:
            norm = rounding.norm_of(trained_parameters(model))
        else:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if norm.device.type != "cpu" or torch.isfinite(norm):
            set_learning_rate(torch_optimizer, learning_rate)
            if rounding:
                # Gradients are clipped once they are in fp32.
                scale = (settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
                rounding.step_in_fp32(
                    trained_parameters(model), torch_optimizer, scale, settings.seed
                )
            else:
                torch_optimizer.step()
        torch_optimizer.zero_grad()
        return norm


def adamw(groups: list[dict[str, Any]], settings: Train) -> torch.optim.AdamW:
    """PyTorch's AdamW over groups of parameters, fused."""
    from torch.optim import AdamW

    betas = (settings.adam_beta1, settings.adam_beta2)
    return AdamW(groups, lr=settings.learning_rate, betas=betas, fused=True)


def block_matrices(model: PreTrainedModel) -> list[nn.Parameter]:
    """The trained matrices of a model's transformer blocks.

    Embeddings are none, and neither are experts that are fused, nor adapters of these.
    """
    from torch import nn

    from moray.model.forward import blocks_of

    # Some architectures name their embeddings among their blocks.
    blocks = [one for one in blocks_of(model) if not type(one).__name__.endswith("Embeddings")]
    modules = [module for block in blocks for module in block.modules()]
    others: set[nn.Parameter] = set()
    for module in modules:
        if isinstance(module, nn.Embedding):
            others.update(module.parameters())
        # PEFT's adapter of a layer's experts.
        elif getattr(module, "num_experts", 1) > 1:
            own = module.named_parameters()
            others.update(each for name, each in own if name.startswith("lora_"))
    return [
        parameter
        for block in blocks
        for name, parameter in trained_parameters(block).items()
        if parameter.dim() == 2 and _is_decayed(name, parameter) and parameter not in others
    ]


def _bytes(each: tuple[int, int], trained: int, in_matrices: int) -> int:
    return each[0] * in_matrices + each[1] * (trained - in_matrices)


def _is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to matrices, but to no biases, norms or decay rates of states.

    Norms are vectors, but the biases of a layer of experts are a matrix, and so are Mamba's rates.
    """
    own = name.rpartition(".")[2]
    return parameter.dim() >= 2 and "bias" not in own and own != "A_log"


def set_learning_rate(torch_optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in torch_optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_ratio", 1.0)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name; tied ones once."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def as_saved(value: Tensor | Moment) -> Tensor:
    """A value of the training state as a checkpoint has it."""
    from torch import Tensor

    return value if isinstance(value, Tensor) else value.dequantized()


def state_name(weight: str, key: str) -> str:
    """The name that state of a weight has in a checkpoint; no weight's own has a slash."""
    return f"{weight}/{key}"


def is_state(name: str) -> bool:
    """Whether a name in a checkpoint is of optimizer state."""
    return "/" in name
