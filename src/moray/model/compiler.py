"""Options for PyTorch's compiler."""

from collections.abc import Callable
from typing import Any

import torch


def compiler_options() -> dict[str, str | int | bool | Callable[..., Any]]:
    """Options for each `torch.compile` of a training; their names are those of TorchInductor."""
    return {
        # Otherwise the compiler tests each instruction set of the processor at each start, in
        # subprocesses, for 1.5 s, or 16 s the first time; `compiler_fault` covers the best one.
        "cpp.vec_isa_ok": True,
        # Otherwise the compiler times variants of a kernel on a GPU, and which one wins can change.
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
