"""An upgrade runs again what it changes, and nothing else."""

import json
import shutil
from pathlib import Path

import equivalents
import pytest
from project import ROOT, Project, copy_of

LOSS = "src/moray/tasks/language/loss.py"
RETURNED = "return torch.index_select(states.flatten(0, 1), 0, indices)"
# The same bytes, and others.
REFACTORED = "flat = states.flatten(0, 1)\n        return torch.index_select(flat, 0, indices)"
CHANGED = "return torch.index_select(states.flatten(0, 1), 0, indices) * 1.01"


def version(folder: Path, code: str) -> Path:
    """The project with other code of the loss."""
    file = copy_of(ROOT, folder) / LOSS
    text = file.read_text()
    assert RETURNED in text
    file.write_text(text.replace(RETURNED, code))
    return folder


@pytest.mark.release
@pytest.mark.parametrize("code", [REFACTORED, CHANGED], ids=["same bytes", "other bytes"])
def test_an_upgrade_runs_again_what_makes_other_bytes(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_run(project: Project) -> None:
        run = {"model": "tiny", "dataset": "modules", "train": {"launcher": "torchrun"}}
        project.configure(["runs"], {"only": run})

    monkeypatch.setattr(equivalents, "write_config", one_run)
    monkeypatch.setattr(equivalents, "write_data", lambda folder: None)
    monkeypatch.setattr(equivalents, "TARGETS", ("eval",))
    upgrade = version(tmp_path / "upgrade", code)
    table, differing = equivalents.compared(ROOT, upgrade, tmp_path)
    project = Project(tmp_path / "previous")
    shutil.rmtree(project.folder / "src")
    shutil.copytree(upgrade / "src", project.folder / "src")
    (project.folder / "src/moray/config/equivalents.json").write_text(json.dumps(table))
    planned = project.planned("eval")
    if code == REFACTORED:
        assert {"evaluate", "finetune_run"} <= set(table)
        assert (dict(differing), planned) == ({}, set())
    else:
        assert "finetune_run" in differing
        assert planned == {"finetune only", "export only", "evaluate only"}
