"""An extra is a folder that can be deleted: nothing else of the project needs it."""

import ast
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from project import ROOT, Project

from moray.config import extras

FOLDERS = sorted(path.parent.name for path in ROOT.glob("src/moray/extras/*/__init__.py"))
TABLES = [
    extras.COMMANDS,
    extras.COPIES,
    extras.METRICS,
    extras.OPTIMIZERS,
    extras.QUANTIZED,
    extras.SCHEMES,
    extras.STAGES,
    extras.STRATEGIES,
    extras.TABLES,
    extras.TRACKERS,
    extras.WEIGHTS,
]


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_core_names_each_folder() -> None:
    assert {folder for table in TABLES for folder in table.values()} == {*FOLDERS}


def test_no_test_of_the_core_imports_an_extra() -> None:
    found = [
        (file.relative_to(ROOT), name)
        for file in sorted(ROOT.glob("tests/**/*.py"))
        if not file.is_relative_to(ROOT / "tests/extras")
        for name in imported(file)
        if name.startswith(("moray.extras", "extras."))
    ]
    assert not found


def without(folders: list[str], place: Path) -> Project:
    """The project without some extras; its commands can still be listed."""
    project = Project.create(place)
    for folder in folders:
        shutil.rmtree(project.folder / "src/moray/extras" / folder)
    listed = subprocess.run(
        ["moray", "--help"],
        cwd=project.folder,
        env=project.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    for command, folder in extras.COMMANDS.items():
        is_listed = re.search(rf"^│ {command} ", listed.stdout, re.MULTILINE) is not None
        assert is_listed == (folder not in folders)
    return project


@pytest.mark.release
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_workflow_plans_without_it(folder: str, tmp_path: Path) -> None:
    planned = without([folder], tmp_path / "project").planned("eval", "generate")
    assert {"finetune tuned", "evaluate tuned", "generate tuned"} <= planned


@pytest.mark.long
def test_a_config_that_asks_for_it_is_refused(tmp_path: Path) -> None:
    project = without(["gguf", "near_copies"], tmp_path / "project")
    project.configure(["runs", "tuned", "gguf"], {})
    (project.folder / "x.jsonl").write_text('{"text": "a"}')
    section = {"source": "files", "path": "x.jsonl", "deduplicate": "near"}
    project.configure(["datasets", "x"], section)
    done = project.snakemake("--dry-run", "eval")
    assert done.returncode == 1
    assert "runs.tuned.gguf: needs moray/extras/gguf, which was deleted; " in done.stderr
    assert (
        "datasets.x.deduplicate: needs moray/extras/near_copies, which was deleted; put the folder "
        "back, or remove the key" in done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_run_trains_and_is_evaluated_without_any(tmp_path: Path) -> None:
    project = without(FOLDERS, tmp_path / "project")
    project.configure(["defaults", "train", "launcher"], "torchrun")
    project.configure(["runs", "tuned"], None)
    done = project.snakemake("--cores", "2", "eval")
    assert done.returncode == 0, done.stderr
    scores = json.loads((project.folder / "results/runs/base/eval.json").read_text())
    assert scores["tuned"]["loss"]["value"] < scores["base"]["loss"]["value"]
