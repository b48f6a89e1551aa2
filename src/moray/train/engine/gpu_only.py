"""The error for settings that need a GPU; usable without importing PyTorch."""

from moray.errors import UserError


def needs_gpu(path: str, kind: str) -> UserError:
    """The error for an attention implementation that doesn't work on CPUs."""
    return UserError(
        path,
        f"{kind} needs GPUs: in PyTorch, it has no backward pass on CPUs",
        "set it to auto, or train on GPUs",
    )
