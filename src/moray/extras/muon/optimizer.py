"""Muon (Jordan et al., 2024) for the matrices of blocks, and AdamW for the rest.

Both take the same learning rate, because the update of a matrix is scaled to the size of AdamW's
(Liu et al., "Muon is Scalable for LLM Training", 2025, section 2.2).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon

from moray.config.schema.train import Train
from moray.errors import UserError
from moray.train.optimizer import adamw, block_matrices
from moray.train.whole_tensors import step_whole

_Group = dict[str, Any]


class _MuonAndAdamW(torch.optim.Optimizer):
    """Both optimizers as one, which has their groups and their state.

    Attributes:
        matrices: the parameters that Muon steps.
    """

    def __init__(self, muon: Muon, others: AdamW | None) -> None:
        self.matrices = {each for group in muon.param_groups for each in group["params"]}
        self._muon, self._others = muon, others
        parts = (muon, others) if others else (muon,)
        super().__init__([group for part in parts for group in part.param_groups], {})
        first = len(muon.param_groups)
        muon.param_groups, muon.state = self.param_groups[:first], self.state
        if others:
            others.param_groups, others.state = self.param_groups[first:], self.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step of both; there is no closure."""
        step_whole(self._muon, Muon)
        if self._others:
            self._others.step()


def make(model: nn.Module, groups: list[_Group], settings: Train) -> torch.optim.Optimizer:
    """The optimizer over groups of parameters.

    Raises:
        UserError: if the model has no matrices in blocks.
    """
    matrices = {*block_matrices(model)}
    if not matrices:
        raise UserError(
            "train.optimizer",
            "muon steps the matrices of transformer blocks, of which none are trained here",
            "set it to adamw",
        )
    muon = Muon(
        _only(groups, lambda each: each in matrices),
        lr=settings.learning_rate,
        adjust_lr_fn="match_rms_adamw",
    )
    others = _only(groups, lambda each: each not in matrices)
    return _MuonAndAdamW(muon, adamw(others, settings) if others else None)


def state_of(torch_optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The state of a matrix before the first step, by Muon's name; empty for what AdamW steps."""
    assert isinstance(torch_optimizer, _MuonAndAdamW)
    if parameter not in torch_optimizer.matrices:
        return {}
    return {"momentum_buffer": torch.zeros_like(parameter, dtype=torch.float32)}


def _only(groups: Iterable[_Group], accepts: Callable[[nn.Parameter], bool]) -> list[_Group]:
    """Groups with some of their parameters; those of none are left out."""
    chosen = [{**group, "params": [*filter(accepts, group["params"])]} for group in groups]
    return [group for group in chosen if group["params"]]
