"""Run the benchmarks of the documentation, and write what they print there: `python -m benchmarks`.

A page has the output of a command between `<!-- begin: python -m benchmarks.NAME -->` and
`<!-- end -->`. Nothing else should run on the machine.
"""

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
import typer

from moray import machine

_PAGES = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"(?<=<!-- begin: python -m )(.*?)( -->\n).*?(?=<!-- end -->)", re.S)


def main(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Part of a command, such as benchmarks.memory; can be given repeatedly."),
    ] = None,
) -> None:
    """Run the commands that this machine can, one after the other; by default, all."""
    # Else DeepSpeed writes into the output that it found no other.
    accelerator = {} if torch.cuda.is_available() else {"DS_ACCELERATOR": "cpu"}
    for page in sorted(_PAGES.glob("*.md")):
        for command in commands_of(page.read_text()):
            if only and not any(part in command for part in only):
                continue
            if "benchmarks.gpu" in command and not torch.cuda.is_available():
                print(f"{command}: needs a GPU", flush=True)
                continue
            print(command, flush=True)
            done = subprocess.run(
                [sys.executable, "-m", *shlex.split(command)],
                stdout=subprocess.PIPE,
                env=os.environ | accelerator,
                text=True,
                check=True,
            )
            page.write_text(with_output(page.read_text(), command, f"{_facts()}\n\n{done.stdout}"))


def commands_of(text: str) -> list[str]:
    """The commands whose output is in a page, without `python -m`."""
    return [command for command, _ in _BLOCK.findall(text)]


def with_output(text: str, command: str, output: str) -> str:
    """A page with a new output of a command."""

    def block(found: re.Match[str]) -> str:
        if found[1] != command:
            return found[0]
        return f"{found[1]}{found[2]}\n{output.strip()}\n\n"

    return _BLOCK.sub(block, text)


def _facts() -> str:
    described = machine.description()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True, cwd=_PAGES
    ).stdout.strip()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{date.today():%d %B %Y}, commit {commit or 'unknown'}, {described['cores']} cores of "
        f"{described['processor']}{gpu}, Python {platform.python_version()}, PyTorch "
        f"{torch.__version__}, transformers {version('transformers')}:"
    )


if __name__ == "__main__":
    typer.run(main)
