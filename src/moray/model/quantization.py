"""How the frozen base of an adapter is to be quantized; an extra does it."""

from dataclasses import dataclass
from typing import Literal

import torch

Bits = Literal["4bit", "8bit"]


@dataclass(frozen=True)
class Quantization:
    """How a base is quantized while it is loaded.

    Attributes:
        bits: of a weight.
        device: device that computes it; None for the current GPU, or the CPU if there is none.
    """

    bits: Bits
    device: torch.device | None = None
