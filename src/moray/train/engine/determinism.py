"""The same bytes from the same run on a GPU; a CPU gives them by itself."""

import os

import torch
import torch._inductor.config as inductor


def compute_deterministically(device: torch.device) -> None:
    """Have PyTorch use deterministic algorithms alone on a GPU, before it computes anything there.

    An operation without one raises. Source: PyTorch's notes on reproducibility.
    """
    if device.type == "cpu":
        return
    # cuBLAS reads it when it is first used.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # Otherwise the compiler times variants of a kernel, and which one wins can change.
    inductor.deterministic = True
