"""The notebooks: executed as they stand, and what is stored in them."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from project import ROOT

# The stored outputs are those of a model that has learned something.
STORED_STEPS, STEPS = "max_steps: 512, eval_steps: 64", "max_steps: 32, eval_steps: 8"
# Trains for minutes what tests of images train in seconds.
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def read(name: str) -> Any:
    return nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4)


def kinds(cell: Any) -> list[str]:
    """What a cell put out besides text: data frames, figures."""
    return sorted({kind for output in cell.outputs for kind in output.get("data", [])})


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS == ["images", "quickstart"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_stored_of_one_execution_without_errors(name: str) -> None:
    cells = code_cells(read(name))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output.output_type != "error" for cell in cells for output in cell.outputs)
    assert any("image/png" in kinds(cell) for cell in cells)
    assert any("text/html" in kinds(cell) for cell in cells)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_name_no_place_of_the_machine_that_made_them(name: str) -> None:
    texts = [
        output.get("text", output.get("data", {}).get("text/plain", ""))
        for cell in code_cells(read(name))
        for output in cell.outputs
    ]
    assert not [text for text in texts if re.search(r"(^|[\s'\"])/\w", text)]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_a_notebook_links_to_is_there(name: str) -> None:
    for cell in read(name).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)#]+)", cell.source):
                assert (ROOT / "notebooks" / target).exists(), target


@pytest.mark.release
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_in_an_empty_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For `!snakemake` and `!moray`.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook, stored = read(name), read(name)
    if name == "quickstart":
        (settings,) = (cell for cell in code_cells(notebook) if STORED_STEPS in cell.source)
        settings.source = settings.source.replace(STORED_STEPS, STEPS)
    # Raises if a cell does.
    NotebookClient(
        notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    for cell, before in zip(code_cells(notebook), code_cells(stored), strict=True):
        assert kinds(cell) == kinds(before), cell.source
        # A command that fails raises nothing.
        assert "error:" not in "".join(output.get("text", "") for output in cell.outputs)
