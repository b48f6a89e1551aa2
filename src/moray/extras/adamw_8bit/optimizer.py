"""AdamW with moments in 8 bits. Source: Dettmers et al., "8-bit Optimizers via Block-wise
Quantization", 2022.

A moment has a code of 8 bits for each weight, and for each block of 256 codes a scale, the largest
magnitude in the block. A step dequantizes, steps in fp32, and quantizes; on GPUs, it is a kernel of
bitsandbytes.

The optimizers of libraries don't keep what is asked of a run: bitsandbytes' refuses DTensors, and
torchao's has a lowest level of -0.993, so that moments can't be restored from their values in fp32,
the one form of all checkpoints.
"""

from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from moray.config.schema.train import Train
from moray.train.adamw import local_shard, step_shard
from moray.train.optimizer import Moment

_BLOCK = 256
# Elements of a tensor, over all workers, whose moments are in 8 bits: as in bitsandbytes, no fewer,
# and no more than its kernels count.
_ELEMENTS = range(4096, 2**31)
# Bits of an fp32 number behind the leading ones, see `_borders`.
_REST = 14


class Blocks(Moment):
    """A moment of this worker's shard of a parameter.

    Attributes:
        levels: what codes stand for, as shares of a block's scale, ascending.
        codes: of the shard's elements, in their order.
        scales: of the blocks.
    """

    def __init__(self, parameter: Tensor, signed: bool) -> None:
        """Zeros; only signed values can become negative."""
        self._parameter = parameter
        shard = local_shard(parameter)
        number = shard.numel()
        self._signed = signed
        self.levels = _levels(signed, shard.device)
        self.codes = torch.zeros(number, dtype=torch.uint8, device=shard.device)
        self.scales = torch.zeros(-(-number // _BLOCK), device=shard.device)

    def numel(self) -> int:
        """The number of elements over all workers."""
        return self._parameter.numel()

    def empty(self) -> Tensor:
        """An fp32 tensor like the parameter, and sharded like it, but in main memory.

        Devices have no room for moments in fp32.
        """
        return torch.empty_like(
            self._parameter, dtype=torch.float32, device="cpu", requires_grad=False
        )

    def __getitem__(self, part: slice) -> Self:
        """A view of some of the shard's elements; the first one begins a block."""
        some = copy(self)
        some.codes = self.codes[part]
        some.scales = self.scales[part.start // _BLOCK : -(-part.stop // _BLOCK)]
        return some

    def values(self) -> Tensor:
        """The values of the shard in fp32, in one dimension."""
        if not len(self.codes):
            return torch.empty(0, device=self.codes.device)
        values: Tensor = torch.ops.bitsandbytes.dequantize_blockwise(
            self.codes, self.scales, self.levels, _BLOCK, torch.float32
        )
        return values

    def dequantized(self) -> Tensor:
        tensor = self.empty()
        shard = local_shard(tensor)
        shard.copy_(self.values().view_as(shard))
        return tensor

    def quantize(self, values: Tensor) -> None:
        """Set the values, of the shard or like `empty`, each to the nearest level.

        Values that were dequantized are set exactly: the largest magnitude is the scale, and no
        rounding moves a value half the way to the next level.
        """
        given = local_shard(values).to(self.codes.device).flatten()
        blocks = nn.functional.pad(given, (0, -len(given) % _BLOCK)).view(-1, _BLOCK)
        scales = blocks.abs().amax(1)
        # Blocks of zeros have a scale of zero.
        shares = (blocks / scales.unsqueeze(1)).nan_to_num_(0.0)
        self.codes.copy_(_nearest(shares.flatten()[: len(given)], self._signed))
        self.scales.copy_(scales)

    def step(
        self,
        square: Self,
        weights: Tensor,
        gradients: Tensor,
        number: int,
        group: Mapping[str, Any],
    ) -> None:
        """Take a step of AdamW, whose mean of the gradient this is."""
        if weights.device.type == "cpu":
            # What the kernel does on GPUs. On CPUs, bitsandbytes looks shares up in a table of 2^15
            # rows, so that a moment of zero becomes 2e-5 of the block's largest.
            means, squares = self.values(), square.values()
            step_shard(weights, gradients, means, squares, number, group)
            self.quantize(means)
            square.quantize(squares)
        else:
            torch.ops.bitsandbytes.optimizer_update_8bit_blockwise(
                "adam",
                gradients,
                weights,
                self.codes,
                square.codes,
                *group["betas"],
                # Of other optimizers.
                0.0,
                0.0,
                group["eps"],
                number,
                group["lr"],
                self.levels,
                square.levels,
                self.scales,
                square.scales,
                group["weight_decay"],
                1.0,
                False,
            )


@cache
def _levels(signed: bool, device: torch.device) -> Tensor:
    # Importing it takes a while.
    from bitsandbytes.functional import create_dynamic_map

    levels: Tensor = create_dynamic_map(signed)
    if signed:
        # bitsandbytes' lowest is -0.993, so a block would lose its scale where the largest
        # magnitude is negative, and couldn't be restored from its values.
        levels[0] = -1.0
    return levels.to(device)


@cache
def _borders(signed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The borders between levels, and the code of the lowest number with the same leading bits.

    Leading bits are sign, exponent and 9 bits of the mantissa. Numbers that share them have at most
    one border between them.
    """
    levels = _levels(signed, device)
    borders = nn.functional.pad((levels[1:] + levels[:-1]) / 2, (0, 1), value=torch.inf)
    bits = torch.arange(-(2**17), 2**17, dtype=torch.int32, device=device) << _REST
    ends = torch.stack([bits, bits | (2**_REST - 1)]).view(torch.float32)
    return borders, torch.bucketize(ends.nan_to_num(0.0).amin(0), borders, out_int32=True)


def _nearest(shares: Tensor, signed: bool) -> Tensor:
    """The codes of the levels that are nearest to shares.

    On CPUs, a binary search for each share would take eight times as long.
    """
    borders, lowest = _borders(signed, shares.device)
    codes = lowest.index_select(0, (shares.view(torch.int32) >> _REST) + 2**17)
    return codes + (shares > borders.index_select(0, codes))


class _AdamW8bit(AdamW):
    """PyTorch's AdamW, in which moments can be `Blocks`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; gradients of moments in `Blocks` are cleared."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if parameter.grad is not None and isinstance(state["exp_avg"], Blocks):
                    state["step"] += 1
                    step_shard(
                        local_shard(parameter).view(-1),
                        local_shard(parameter.grad).flatten(),
                        state["exp_avg"],
                        state["exp_avg_sq"],
                        int(state["step"]),
                        group,
                    )
                    # PyTorch steps what has a gradient.
                    parameter.grad = None
        return super().step(closure)


def make(model: nn.Module, groups: list[dict[str, Any]], settings: Train) -> torch.optim.Optimizer:
    """The optimizer over groups of parameters."""
    betas = (settings.adam_beta1, settings.adam_beta2)
    return _AdamW8bit(groups, lr=settings.learning_rate, betas=betas, fused=True)


def state_of(
    torch_optimizer: torch.optim.Optimizer, parameter: Tensor
) -> dict[str, Tensor | Moment]:
    """The state of a parameter before the first step, by AdamW's names; empty for fp32."""
    if parameter.numel() not in _ELEMENTS:
        return {}
    return {
        "exp_avg": Blocks(parameter, signed=True),
        "exp_avg_sq": Blocks(parameter, signed=False),
        # The step is ours, and takes its number from the host.
        "step": torch.zeros(()),
    }
