"""A copy of the package with the task on text of docs/tasks.md, and without other tasks."""

import json
import re
import shutil

import pytest
from project import ROOT, Project

BLOCK = re.compile(r'```python title="(.+?)"\n(.*?)```', re.DOTALL)


@pytest.mark.long
def test_a_task_on_text_needs_modules_and_facts_and_no_change_of_the_workflow(
    fresh: Project,
) -> None:
    for name, code in BLOCK.findall((ROOT / "docs/tasks.md").read_text()):
        file = fresh.folder / name
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text(code)
            continue
        # An entry of a table, and of the names that the config can have.
        opened = r"^([A-Z]+: dict\[(?:\w+Name|str),.*= {\n)"
        whole, tables = re.subn(opened, rf"\1{code}", file.read_text(), flags=re.M)
        assert tables == 1
        file.write_text(re.sub(r"^(\w+Name = Literal\[)", r'\1"infill", ', whole, flags=re.M))
    gaps = {"source": "files", "path": "data/modules.jsonl", "format": "infill"}
    fresh.configure(["datasets", "gaps"], gaps | {"test_share": 0.2, "validation_share": 0.1})
    launcher = {"launcher": "torchrun"}
    fresh.configure(["runs"], {"only": {"model": "tiny", "dataset": "gaps", "train": launcher}})
    done = fresh.snakemake("eval", "preview", "--cores", "2")
    assert done.returncode == 0, done.stderr
    assert "<mid>" in done.stdout
    scores = json.loads((fresh.folder / "results/runs/only/eval.json").read_text())
    assert scores["documents"] > 0
    assert scores["tuned"]["bits_per_byte"]["value"] < scores["base"]["bits_per_byte"]["value"]


@pytest.mark.long
def test_the_folder_of_a_task_can_be_removed(fresh: Project) -> None:
    for name in ("images", "preference"):
        shutil.rmtree(fresh.folder / "src/moray/tasks" / name)
    only = {"model": "tiny", "dataset": "modules", "train": {"launcher": "torchrun"}}
    fresh.configure(["runs"], {"only": only})
    done = fresh.snakemake("cards", "generate", "results/report.html", "--cores", "2")
    assert done.returncode == 0, done.stderr
    assert (fresh.folder / "results/runs/only/README.md").is_file()
