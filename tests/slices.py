"""Tasks that are added to a copy of the package, as a page has them, or removed from it."""

import re
import shutil
from pathlib import Path

from project import ROOT, Project

_BLOCK = re.compile(r'```\w+ title="(.+?)"\n(.*?)```', re.DOTALL)
# The first line of a table, and a name in one.
_TABLE = re.compile(r"^[A-Z]+: dict\[(\w+), .+= \{\n", re.MULTILINE)
_NAME = re.compile(r'^    "(.+?)": ', re.MULTILINE)


def add_slice(page: str, project: Project) -> None:
    """Write the files of a page into a project, and its entries into tables that are there."""
    for name, code in _BLOCK.findall((ROOT / page).read_text()):
        file = project.folder / name
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text(code)
            continue
        tables = [*_TABLE.finditer(code)]
        ends = [*(table.start() for table in tables[1:]), len(code)]
        for table, end in zip(tables, ends, strict=True):
            entries = code[table.end() : end].rstrip() + "\n"
            _insert(file, table[0], entries)
            for entry in _NAME.findall(entries):
                names = f"{table[1]} = Literal["
                _insert(file, names, f'"{entry}", ')


def _insert(file: Path, behind: str, text: str) -> None:
    whole = file.read_text()
    assert whole.count(behind) == 1
    file.write_text(whole.replace(behind, behind + text))


def remove_tasks(
    names: tuple[str, ...], modality: str, stages: tuple[str, ...], project: Project
) -> None:
    """Remove all tasks of a modality: their folders, their rules and their entries."""
    for name in names:
        shutil.rmtree(project.folder / "src/moray/tasks" / name)
    for stage in stages:
        (project.folder / f"workflow/rules/{stage}.smk").unlink()
        (project.folder / f"workflow/scripts/{stage}.py").unlink()
    file = project.folder / "src/moray/config/tasks.py"
    code = file.read_text()
    # Formats have hyphens.
    entries = [*dict.fromkeys([*names, *(name.replace("_", "-") for name in names)]), modality]
    for entry in entries:
        table = rf'^    "{entry}": \w+\(\n.*?^    \),\n'
        code, count = re.subn(table, "", code, flags=re.MULTILINE | re.DOTALL)
        assert count
        # Among the names at the top, in a line with others or in one of its own.
        code = re.sub(rf'"{entry}", |    "{entry}",\n', "", code)
    assert not [entry for entry in entries if f'"{entry}"' in code]
    file.write_text(code)
