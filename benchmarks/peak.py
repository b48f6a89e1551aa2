"""What a machine computes at most in matrix products of a model's sizes; shares are of this."""

import time

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from benchmarks.turns import finish

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SECONDS = 0.5
_IN_A_ROW = 50


def product_sizes(model: PreTrainedModel, tokens: int) -> set[tuple[int, int, int]]:
    """Rows, inner size and columns of the products in a forward pass over so many tokens."""
    weights = {parameter.shape for parameter in model.parameters() if parameter.dim() == 2}
    return {(tokens, inner, columns) for columns, inner in weights}


def product_peak(sizes: set[tuple[int, int, int]], precision: str, device: torch.device) -> float:
    """FLOP/s of the fastest of some matrix products, on the threads that PyTorch has, or a GPU.

    Args:
        sizes: rows, inner size and columns of each.
        precision: `fp32` or `bf16`.
    """
    return max(2 * m * k * n / _seconds(m, k, n, precision, device) for m, k, n in sizes)


def _seconds(m: int, k: int, n: int, precision: str, device: torch.device) -> float:
    """Seconds of one product, by repeating it."""
    rows = torch.randn(m, k).to(device, DTYPES[precision])
    weight = torch.randn(n, k).to(device, DTYPES[precision])
    for _ in range(_IN_A_ROW if device.type == "cuda" else 1):
        F.linear(rows, weight)
    finish(device)
    began, done = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < _SECONDS:
        # To wait for a GPU takes as long as a small product.
        for _ in range(_IN_A_ROW if device.type == "cuda" else 1):
            F.linear(rows, weight)
            done += 1
        finish(device)
    return seconds / done
