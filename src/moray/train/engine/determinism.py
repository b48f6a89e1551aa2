"""Reproducible results, byte for byte, on a GPU; on a CPU they always are."""

import os

import torch


def compute_deterministically(device: torch.device) -> None:
    """Use only deterministic algorithms on a GPU; call before anything is computed on it.

    Operations without a deterministic algorithm raise. Source: PyTorch, "Reproducibility".
    """
    if device.type == "cpu":
        return
    # cuBLAS reads it when it is first used.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
