"""Adafactor. Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory
Cost", 2018.

Of a matrix, it keeps the mean squares of the gradient's rows and columns. Its rate is relative to
the root mean square of the weights, so it is higher than AdamW's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adafactor

from moray.config.schema.train import Train
from moray.train.whole_tensors import step_whole


class _Adafactor(Adafactor):
    """PyTorch's Adafactor, which also steps tensors that are sharded."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; there is no closure."""
        step_whole(self, Adafactor)


def make(model: nn.Module, groups: list[dict[str, Any]], settings: Train) -> torch.optim.Optimizer:
    """The optimizer over groups of parameters."""
    return _Adafactor(groups, lr=settings.learning_rate)


def state_of(torch_optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The state of a parameter before the first step, by Adafactor's names."""
    state: dict[str, Tensor] = {"step": torch.zeros(())}
    if parameter.dim() < 2:
        return state | {"variance": torch.zeros_like(parameter, dtype=torch.float32)}
    *outer, rows, columns = parameter.shape
    # Whole on each worker.
    empty = torch.zeros((), device=parameter.device)
    return state | {
        "row_var": empty.new_zeros(*outer, rows, 1),
        "col_var": empty.new_zeros(*outer, 1, columns),
    }
