"""Make GGUF files with the tools of llama.cpp."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from moray.background import die_with_parent
from moray.errors import UserError
from moray.extras.gguf.requirements import CONVERTER, QUANTIZER, converter, quantizer

_TOOLS = (CONVERTER, QUANTIZER)


def convert(model: Path, output: Path, kind: str) -> None:
    """Write a model folder as a GGUF file of one of the types in `CONVERTED`.

    Raises:
        UserError: if llama.cpp can't convert the model.
    """
    _run([sys.executable, converter(), "--outtype", kind, "--outfile", output, model], model)


def quantize(source: Path, output: Path, kind: str) -> None:
    """Write a GGUF file of one of the types in `CONVERTED` with fewer bits for each weight.

    Raises:
        UserError: if llama.cpp can't quantise the model.
    """
    tool = quantizer()
    assert tool
    _run([tool, source, output, kind.upper()], source)


def _run(command: Sequence[str | Path], source: Path) -> None:
    """Run a tool; what it prints goes to the log."""
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Threads of libraries are idle here, so they hold no lock that the child would wait for.
        preexec_fn=die_with_parent,
    )
    print(process.stdout, flush=True)
    if process.returncode:
        last = next(filter(None, map(str.strip, process.stdout.splitlines()[::-1])), "no message")
        tool = next(name for word in command if (name := Path(word).name) in _TOOLS)
        raise UserError(
            str(source),
            f"{tool} of llama.cpp fails ({last})",
            "see the log; llama.cpp may not support this architecture or tokenizer",
        )
