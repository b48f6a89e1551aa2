"""Every command that README and docs show."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from project import ROOT, Project
from typer.core import TyperGroup
from typer.main import get_command

from moray.cli import app

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# Programs of others, whose commands no test can hold against their documentation.
_OF_OTHERS = ("conda", "docker", "helm", "jupyter", "kubectl", "ollama", "pip", "ray", "sbatch")
# What a shell does, and Python's own modules.
_SHELL = (".", "cd", "export", "head", "python3", "touch")
_SNAKEMAKE = "snakemake "
_BLOCK = re.compile(r"^ *```console\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def _commands_of(text: str) -> set[str]:
    found = set()
    for block in _BLOCK.findall(text):
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
        typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")] or lines
        found |= {" ".join(re.sub(r"\s#.*", "", line).split()) for line in typed}
    return found - {""}


def test_what_is_typed_has_a_prompt() -> None:
    """Without one, a site shows commands like what they print."""
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text()):
            assert re.search(r"^ *\$ ", block, re.MULTILINE), (page.name, block)


COMMANDS = {page.name: _commands_of(page.read_text()) for page in PAGES}
DISTINCT = sorted(set().union(*COMMANDS.values()))


@pytest.mark.parametrize("command", DISTINCT)
def test_a_command_is_one_that_there_is(command: str) -> None:
    """Snakemake's are planned below."""
    program, *arguments = shlex.split(command.partition(" > ")[0])
    if program == "moray":
        name = arguments[0]
        own = get_command(app)
        assert isinstance(own, TyperGroup)
        # Parses the arguments as the command would, and runs nothing.
        own.commands[name].make_context(name, arguments[1:])
    elif program == "make":
        planned = ["make", "--dry-run", *arguments]
        assert subprocess.run(planned, cwd=ROOT, capture_output=True, check=False).returncode == 0
    else:
        assert program in {"snakemake", *_OF_OTHERS, *_SHELL}


@pytest.mark.long
def test_snakemake_plans_what_its_commands_ask_for(tmp_path: Path, model_folder: Path) -> None:
    fresh = Project.create(tmp_path / "project")
    shutil.copy(ROOT / "config/config.yaml", fresh.config)
    # At the paths that the overlays for one's own data have.
    shutil.copytree(model_folder, fresh.folder / "data/model")
    for name in ("text.txt", "conversations.json", "instructions.json"):
        (fresh.folder / "data" / name).write_text("[]")
    shutil.copy(ROOT / "config/local-text.yaml", fresh.folder / "mine.yaml")
    # What `moray import` would have made.
    (fresh.folder / "config/mine.yaml").write_text("{}")
    sweeps = (ROOT / "docs/sweeps.md").read_text()
    sweep = next(
        block for block in re.findall(r"```yaml\n(.*?)```", sweeps, re.S) if "seeds" in block
    )
    (fresh.folder / "sweep.yaml").write_text(sweep)
    tutorial = (ROOT / "docs/tutorial.md").read_text()
    (more,) = re.findall(r"```yaml\n(runs:\n  more:.*?)```", tutorial, re.S)
    (fresh.folder / "more.yaml").write_text(more)
    planned = [
        command
        for command in DISTINCT
        # The executor of a cluster is a package of its own.
        if command.startswith(_SNAKEMAKE) and "--profile" not in command
    ]
    assert len(planned) >= 10
    for command in planned:
        done = fresh.snakemake("--dry-run", *shlex.split(command)[1:])
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command.startswith("snakemake finetune --configfile"):
            rest = command.removeprefix("snakemake finetune")
            assert f"; next: snakemake eval{rest}\n" in done.stdout
    assert "next: snakemake" not in fresh.snakemake("--dry-run", "eval", "generate").stdout
