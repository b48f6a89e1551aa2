"""Figures to compare a run's with, and how far rounding puts them apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moray.model.forward import resolve

# Weights in 8 bits have no plain counterpart, so they are compared with whole ones.
_TOLERANCES = {"8bit": 0.05, "4bit": 0.02}
# Standard deviation of a token's log-probability in bf16, nats, as measured on a model of 260 k
# parameters and texts of 2 to 300 tokens, and how many deviations are allowed.
_DEVIATION, _DEVIATIONS = 0.05, 4
ROUNDED = 3e-2
"""The largest relative difference of losses in bf16 and in fp32; 1.5 % are usual of few tokens."""


@dataclass(frozen=True)
class Figures:
    """The figures of some rows, by plain transformers.

    Attributes:
        loss: mean over their trained tokens, nats.
        gradient_norm: Euclidean norm of the gradient of `loss`; None if it wasn't computed.
        rounding: absolute difference of `loss` that bf16 explains, of losses that are of sums over
            many tokens; see `rounding_of`.
    """

    loss: float
    gradient_norm: float | None = None
    rounding: float = 0.0


def autocast_as_in_run(precision: str, device: torch.device) -> torch.autocast:
    """The precision of the plain models: bf16 if the run's is and the device computes in it."""
    native = resolve("auto", device) == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=native and precision == "bf16")


def rounding_of(loss: Tensor, sums: Sequence[Tensor], counts: Sequence[int]) -> float:
    """How far bf16 puts a loss of log-probabilities of whole texts apart, to first order.

    Tokens are rounded independently, so that errors of sums grow with the root of their length.

    Args:
        loss: shape (), a function of the sums.
        sums: log-probabilities of texts, nats, each of shape (), that `loss` can be derived by.
        counts: number of rounded tokens in each.
    """
    slopes = torch.autograd.grad(loss, list(sums))
    pairs = zip(slopes, counts, strict=True)
    variance = sum(slope.item() ** 2 * count for slope, count in pairs)
    return _DEVIATIONS * _DEVIATION * math.sqrt(variance)


def tolerance(precision: str, bits: str | None, device: torch.device) -> float:
    """The largest relative difference of a loss that rounding explains.

    Args:
        precision: of the run.
        bits: those of the base that its adapter is on.
        device: of the plain model.
    """
    if bits:
        return _TOLERANCES[bits]
    if precision == "fp32":
        return 1e-4
    return 1e-2 if resolve("auto", device) == "bf16" else ROUNDED
