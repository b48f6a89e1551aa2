"""Which software a result was made with."""

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
    """Versions of Python and of the libraries that shape a result."""
    return {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}
