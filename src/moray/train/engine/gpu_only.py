"""What is said of a setting that only GPUs have, before PyTorch is imported or after."""

from moray.errors import UserError


def needs_gpu(path: str, kind: str) -> UserError:
    """What is raised where a GPU's attention is asked for on a CPU."""
    return UserError(
        path,
        f"{kind} needs GPUs: it has no backward pass on CPUs in PyTorch",
        "set it to auto, or train on GPUs",
    )
