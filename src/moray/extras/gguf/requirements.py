"""The tools of llama.cpp: where they are, and what of them is missing."""

import os
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from moray.config.schema.experiment import Run
from moray.errors import UserError

# Types that the converter itself writes; llama-quantize makes the others.
CONVERTED = ("f32", "f16", "bf16", "q8_0")
CONVERTER = "convert_hf_to_gguf.py"
QUANTIZER = "llama-quantize"
_VARIABLE = "LLAMA_CPP_DIR"


def faults(name: str, run: Run) -> Iterator[UserError]:
    """The missing requirements of a run with GGUF files."""
    assert run.gguf
    yield from missing_tools(name, run.gguf.types)


def missing_tools(run: str, types: Sequence[str]) -> Iterator[UserError]:
    """The missing parts of llama.cpp for a run's types."""
    key = f"runs.{run}.gguf"
    if not find_spec("sentencepiece"):
        yield UserError(
            key,
            "llama.cpp's converter needs a package that is missing: sentencepiece",
            "pip install 'moray[gguf]'",
        )
    folder = os.environ.get(_VARIABLE)
    if not folder:
        yield UserError(
            key,
            f"needs llama.cpp, and {_VARIABLE} is not set",
            "set it to the folder of llama.cpp's source",
        )
    elif not Path(folder, CONVERTER).is_file():
        yield UserError(
            key,
            f"{_VARIABLE} is {folder}, which has no {CONVERTER}",
            "set it to the folder of llama.cpp's source",
        )
    elif not {*types} <= {*CONVERTED} and quantizer() is None:
        small = ", ".join(name for name in types if name not in CONVERTED)
        yield UserError(
            f"{key}.types",
            f"{small} needs {QUANTIZER}, which is not in {folder}/build/bin and not on the PATH",
            "build llama.cpp",
        )


def converter() -> Path:
    """The converter, if it isn't missing."""
    return Path(os.environ[_VARIABLE], CONVERTER)


def quantizer() -> Path | None:
    """llama-quantize, as built or on the PATH."""
    own_build = Path(os.environ[_VARIABLE], "build/bin", QUANTIZER)
    path = own_build if own_build.is_file() else shutil.which(QUANTIZER)
    return Path(path) if path else None
