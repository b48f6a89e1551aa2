"""Every command that README and docs show: what runs it, or who says that it wasn't tried."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from project import ROOT, Project

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# What a test runs, by how the command begins: the test, and what it has of the command.
RUN_BY_TESTS = {
    "ray start": ("clusters/nodes.py", '"ray", "start"'),
    "sbatch --nodes=2 --cpus-per-task=1": ("deployment/test_slurm.py", "sbatch"),
    "ray job submit": ("deployment/test_job.py", "ray job submit"),
    "ray job stop": ("deployment/test_job.py", "ray job stop"),
    "moray verify": ("test_cli.py", "verify"),
    "moray report": ("workflow/test_report.py", "report"),
    "moray import": ("extras/importing/test_import.py", '"import"'),
    "moray plan": ("extras/memory_plan/test_plan.py", '"plan"'),
    "moray chat": ("test_chat.py", "chat"),
    "touch results/state": ("faults/test_workflow.py", "save"),
    "moray init": ("workflow/test_wheel.py", '"init"'),
    "cd demo && snakemake finetune": ("workflow/test_wheel.py", "finetune"),
    "python3 -m venv": ("workflow/test_wheel.py", "venv.create"),
    "pip install moray-0.2.0": ("workflow/test_wheel.py", '"install"'),
    "pip install 'moray[": ("test_environment.py", "optional-dependencies"),
}
# What the page says of those that no test runs.
NOT_RUN = {
    "sbatch --nodes=2 --cpus-per-task=2": ("deploy.md", "by hand"),
    "snakemake --profile profiles/slurm": ("deploy.md", "by hand, on the same Slurm"),
    "pip install snakemake-executor-plugin-slurm": ("deploy.md", "by hand, on the same Slurm"),
    "pip install --": ("install.md", "Tried by hand:"),
    "conda": ("install.md", "**Not tried:**"),
    "jupyter notebook": ("notebooks.md", "was not tried"),
    "helm": ("deploy.md", "nothing else was tried"),
    "docker": ("deploy.md", "nothing else was tried"),
    "ollama": ("serving.md", "**Not tried**: Ollama itself"),
    "kubectl": ("deploy.md", "nothing else was tried"),
}
# Of the shell.
_SHELL = ("export ", "head ", ". ")
_SNAKEMAKE = "snakemake "
_BLOCK = re.compile(r"^ *```console\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def _commands_of(text: str) -> set[str]:
    found = set()
    for block in _BLOCK.findall(text):
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
        typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")] or lines
        found |= {" ".join(re.sub(r"\s#.*", "", line).split()) for line in typed}
    return found - {""}


COMMANDS = {page.name: _commands_of(page.read_text()) for page in PAGES}
DISTINCT = sorted(set().union(*COMMANDS.values()))


def _beginning(command: str, of: dict[str, tuple[str, str]]) -> tuple[str, str] | None:
    return next((where for start, where in of.items() if command.startswith(start)), None)


def test_a_command_is_run_by_a_test_or_its_page_says_how_it_was_tried() -> None:
    for command in DISTINCT:
        if where := _beginning(command, RUN_BY_TESTS):
            assert where[1] in (ROOT / "tests" / where[0]).read_text(), command
        elif where := _beginning(command, NOT_RUN):
            assert where[1] in (ROOT / "docs" / where[0]).read_text(), command
        elif command.startswith("make "):
            planned = ["make", "--dry-run", *shlex.split(command)[1:]]
            done = subprocess.run(planned, cwd=ROOT, capture_output=True, check=False)
            assert done.returncode == 0, command
        else:
            # Snakemake's are run below.
            assert command.startswith((_SNAKEMAKE, *_SHELL)), command


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
        if command.startswith(_SNAKEMAKE) and not _beginning(command, NOT_RUN)
    ]
    assert len(planned) >= 10
    for command in planned:
        done = fresh.snakemake("--dry-run", *shlex.split(command)[1:])
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command.startswith("snakemake finetune --configfile"):
            rest = command.removeprefix("snakemake finetune")
            assert f"; next: snakemake eval{rest}\n" in done.stdout
    assert "next: snakemake" not in fresh.snakemake("--dry-run", "eval", "generate").stdout
