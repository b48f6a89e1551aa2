"""What the code of pages imports from the package is there."""

import re
from importlib import import_module
from importlib.util import find_spec

import pytest
from project import ROOT

_IMPORT = re.compile(r"^from (moray[.\w]*) import (\([^)]+\)|.+)$", re.MULTILINE)
# A module that the page has whole, for a folder of the reader's own.
_TITLE = re.compile(r'^```python title="src/(.+?)\.py"', re.MULTILINE)
PAGES = [path.stem for path in sorted(ROOT.glob("docs/*.md")) if _IMPORT.search(path.read_text())]


def is_there(module: str, name: str) -> bool:
    home = import_module(module)
    is_package = hasattr(home, "__path__")
    return hasattr(home, name) or (is_package and find_spec(f"{module}.{name}") is not None)


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_imports_what_there_is(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    own = {name.replace("/", ".") for name in _TITLE.findall(text)}
    imported = [
        (module, name)
        for module, names in _IMPORT.findall(text)
        if module not in own
        for name in re.findall(r"(\w+)(?: as \w+)?", names)
    ]
    assert imported
    assert not [name for name in imported if not is_there(*name)]
