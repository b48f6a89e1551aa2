"""Figures to compare a run's with, and how far rounding puts them apart."""

from dataclasses import dataclass

import torch

from moray.model.forward import resolve

# Weights in 8 bits have no plain counterpart, so they are compared with whole ones.
_TOLERANCES = {"8bit": 0.05, "4bit": 0.02}
ROUNDED = 3e-2
"""The largest relative difference of losses in bf16 and in fp32; 1.5 % are usual of few tokens."""


@dataclass(frozen=True)
class Figures:
    """The figures of some rows, by plain transformers.

    Attributes:
        loss: mean over their trained tokens, nats.
        gradient_norm: Euclidean norm of the gradient of `loss`; None if it wasn't computed.
    """

    loss: float
    gradient_norm: float | None = None


def autocast_as_in_run(precision: str, device: torch.device) -> torch.autocast:
    """The precision of the plain models: bf16 if the run's is and the device computes in it."""
    native = resolve("auto", device) == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=native and precision == "bf16")


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
