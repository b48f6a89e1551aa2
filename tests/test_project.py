"""Project folders of one's own."""

from pathlib import Path

import pytest
from project import ROOT
from typer.testing import CliRunner

from moray.cli import app
from moray.project import LOCK, SNAKEFILE, WORKFLOW


def test_in_a_clone_the_workflow_is_around_the_package() -> None:
    assert (WORKFLOW, SNAKEFILE) == (ROOT, ROOT / "Snakefile")
    assert LOCK.exists()


@pytest.mark.parametrize("exists", [False, True])
def test_init_makes_a_project_with_the_default_experiment(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if exists:
        Path("demo").mkdir()
    done = CliRunner().invoke(app, ["init", "demo"])
    assert done.exit_code == 0
    assert done.stdout == "made demo; next:\n  cd demo\n  snakemake finetune\n"
    assert {path.name for path in Path("demo").iterdir()} == {
        "Snakefile",
        "config",
        "docs",
        "profiles",
    }
    for name in (
        "config/config.yaml",
        "config/recipes/sft-dpo.yaml",
        "profiles/default/config.yaml",
        "docs/configuration.md",
    ):
        assert Path("demo", name).read_bytes() == (ROOT / name).read_bytes()


def test_init_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr == f"error: {tmp_path}: not empty; choose a new folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_init_refuses_what_can_not_be_a_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["init", str(tmp_path / name)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {tmp_path / name}: ")
    assert len(done.stderr.splitlines()) == 1
