"""Tasks that pages of the documentation have whole, added to a copy of the package."""

import re
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
