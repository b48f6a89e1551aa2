"""Make GGUF files with the tools of llama.cpp."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from moray.background import die_with_parent
from moray.errors import UserError

FOLDER_VARIABLE = "LLAMA_CPP_DIR"
# What the converter itself writes; llama-quantize makes the others.
CONVERTED = ("f32", "f16", "bf16", "q8_0")
_CONVERTER = "convert_hf_to_gguf.py"
_QUANTIZER = "llama-quantize"
_TOOLS = (_CONVERTER, _QUANTIZER)


def missing_tools(run: str, types: Sequence[str]) -> Iterator[UserError]:
    """What llama.cpp needs for a run's types and is not here."""
    key = f"runs.{run}.gguf"
    if not find_spec("sentencepiece"):
        yield UserError(
            key,
            "llama.cpp's converter needs a package that is missing: sentencepiece",
            "pip install 'moray[gguf]'",
        )
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        yield UserError(
            key,
            f"needs llama.cpp, and {FOLDER_VARIABLE} is not set",
            "set it to the folder of llama.cpp's source",
        )
    elif not Path(folder, _CONVERTER).is_file():
        yield UserError(
            key,
            f"{FOLDER_VARIABLE} is {folder}, which has no {_CONVERTER}",
            "set it to the folder of llama.cpp's source",
        )
    elif not {*types} <= {*CONVERTED} and _quantizer() is None:
        small = ", ".join(name for name in types if name not in CONVERTED)
        yield UserError(
            f"{key}.types",
            f"{small} needs {_QUANTIZER}, which is not in {folder}/build/bin and not on the PATH",
            "build llama.cpp",
        )


def convert(model: Path, output: Path, kind: str) -> None:
    """Write a model folder as a GGUF file of one of the types in `CONVERTED`.

    Raises:
        UserError: if llama.cpp can't convert the model.
    """
    converter = Path(os.environ[FOLDER_VARIABLE], _CONVERTER)
    _run([sys.executable, converter, "--outtype", kind, "--outfile", output, model], model)


def quantize(source: Path, output: Path, kind: str) -> None:
    """Write a GGUF file of one of the types in `CONVERTED` with fewer bits for each weight.

    Raises:
        UserError: if llama.cpp can't quantise the model.
    """
    quantizer = _quantizer()
    assert quantizer
    _run([quantizer, source, output, kind.upper()], source)


def _quantizer() -> Path | None:
    built = Path(os.environ[FOLDER_VARIABLE], "build/bin", _QUANTIZER)
    found = built if built.is_file() else shutil.which(_QUANTIZER)
    return Path(found) if found else None


def _run(command: Sequence[str | Path], source: Path) -> None:
    """Run a tool; what it prints goes to the log."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Threads of libraries are idle here, so they hold no lock that the child would wait for.
        preexec_fn=die_with_parent,
    )
    print(done.stdout, flush=True)
    if done.returncode:
        last = next(filter(None, map(str.strip, done.stdout.splitlines()[::-1])), "no message")
        tool = next(Path(word).name for word in command if Path(word).name in _TOOLS)
        raise UserError(
            str(source),
            f"{tool} of llama.cpp fails ({last})",
            "see the log; llama.cpp may not support this architecture or tokenizer",
        )
