"""The software that produced a result."""

import platform
from importlib.metadata import version

_LIBRARIES = (
    "ray",
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "datasets",
    "safetensors",
    "snakemake",
)


def software() -> dict[str, str]:
    """Versions of Python and of the libraries that affect a result."""
    return {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}
