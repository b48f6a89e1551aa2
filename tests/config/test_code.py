import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moray.config.code import code_digest, code_of

ROOT = Path(__file__).parents[2]

# A package with each way to import that matters.
PACKAGE = {
    "moray/__init__.py": "",
    "moray/errors.py": "class UserError(Exception): ...",
    "moray/console.py": "",
    "moray/config/__init__.py": "",
    "moray/config/schema/__init__.py": "",
    "moray/config/schema/train.py": "",
    "moray/config/schemata.py": "",
    "moray/corpus/__init__.py": "from moray.corpus.rows import read",
    "moray/corpus/rows.py": "import moray.ground\ndef read(): ...",
    "moray/tokens/__init__.py": "",
    "moray/tokens/pack.py": "from moray import ground as floor",
    "moray/tokens/order.py": "from moray.tokens import pack",
    "moray/train/__init__.py": "",
    "moray/train/loop.py": "import os\ndef train():\n    from moray.tokens.order import Order",
    "moray/train/circle.py": "from moray.train.loop import train\nimport moray.train.spiral",
    "moray/train/spiral.py": "import moray.train.circle",
    "moray/tasks/__init__.py": "",
    "moray/tasks/language/__init__.py": "",
    "moray/tasks/language/task.py": "import moray.tokens.pack",
    "moray/tasks/images/__init__.py": "",
    "moray/tasks/images/task.py": "import moray.tokens.order",
    "moray/tasks/of_store.py": "from moray.train import spiral",
    "moray/ground.py": "import numpy as np\nfrom moray.errors import UserError",
}

CONFIG = ["moray/__init__.py", "moray/config/__init__.py"]
GROUND = ["moray/__init__.py", "moray/ground.py"]
TOKENS = ["moray/tokens/__init__.py", "moray/tokens/pack.py"]
ORDER = [*GROUND, "moray/tokens/__init__.py", "moray/tokens/order.py", "moray/tokens/pack.py"]
WORKER = [*ORDER, "moray/train/__init__.py", "moray/train/loop.py"]


def write(folder: Path, script: str) -> Path:
    for name, text in (PACKAGE | {"script.py": script}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "script.py"


@pytest.mark.parametrize(
    ("script", "modules"),
    [
        ("import json, torch", []),
        ("import morays.ground", []),
        ("import moray.ground", GROUND),
        ("import moray.ground as floor", GROUND),
        ("from moray import ground", GROUND),
        ("from moray.ground import thing", GROUND),
        ("from moray.tokens.pack import pack", [*GROUND, *TOKENS]),
        ("from moray.tokens import pack", [*GROUND, *TOKENS]),
        # What a package's __init__ imports is imported too.
        (
            "from moray.corpus import read",
            ["moray/__init__.py", "moray/corpus/__init__.py", "moray/corpus/rows.py", GROUND[1]],
        ),
        ("from moray.tokens.order import Order", ORDER),
        # Imports inside a function or a block count.
        ("from moray.train.loop import train", WORKER),
        ("with open('log'):\n    from moray.train.loop import train", WORKER),
        (
            "import moray.train.circle",
            [*WORKER, "moray/train/circle.py", "moray/train/spiral.py"],
        ),
        # These can't change a result.
        ("from moray.config.schema import Train", []),
        ("import moray.config.schema.train", []),
        ("import moray.errors, moray.console", []),
        # The rest of the config can.
        ("from moray import config", ["moray/__init__.py", "moray/config/__init__.py"]),
        ("import moray.config.schemata", [*CONFIG, "moray/config/schemata.py"]),
    ],
)
def test_a_stage_depends_on_the_modules_that_it_imports_directly_or_not(
    script: str, modules: list[str], tmp_path: Path
) -> None:
    found = code_of(write(tmp_path, script), tmp_path)
    assert found == sorted(tmp_path / name for name in [*modules, "script.py"])


@pytest.mark.parametrize(
    ("names", "folders"),
    [(["language"], {"language"}), (["images"], {"images"}), ([], set())],
)
def test_of_modules_that_are_imported_by_name_others_do_not_count(
    names: list[str], folders: set[str], tmp_path: Path
) -> None:
    found = code_of(write(tmp_path, "import moray.tasks.of_store"), tmp_path, *names)
    tasks = tmp_path / "moray/tasks"
    inside = [path.relative_to(tasks).parts for path in found if tasks in path.parents]
    assert {parts[0] for parts in inside if len(parts) > 1} == folders
    # What is imported from outside the tasks counts for each.
    assert tmp_path / "moray/train/spiral.py" in found
    assert tasks / "of_store.py" in found


def test_templates_of_packages_count(tmp_path: Path) -> None:
    script = write(tmp_path, "import moray.tokens.pack")
    template = tmp_path / "moray/tokens/templates/page.html"
    before = code_digest(script, tmp_path)
    template.parent.mkdir()
    template.write_text("<p>one")
    one = code_digest(script, tmp_path)
    template.write_text("<p>two")
    assert len({before, one, code_digest(script, tmp_path)}) == 3
    assert template not in code_of(write(tmp_path, "import moray.corpus.rows"), tmp_path)


def test_moving_the_project_changes_no_digest(tmp_path: Path) -> None:
    folders = [tmp_path / "here", tmp_path / "there/below"]
    scripts = [write(folder, "import moray.train.circle") for folder in folders]
    digests = map(code_digest, scripts, folders)
    assert len(set(digests)) == 1


def test_times_leave_the_digest_as_it_is(tmp_path: Path) -> None:
    script = write(tmp_path, "import moray.train.circle")
    before = code_digest(script, tmp_path)
    os.utime(tmp_path / "moray/ground.py", (0, 0))
    assert code_digest(script, tmp_path) == before


CODE = """
import numpy as np


class Rates:
    peak = 1

    def at(self, step, last=None):
        if step > 10:
            return f"{self.peak * step}", {"a": 1, **{}}
        return [np.cos(x) for x in range(step)]
"""
COMMENTED = '''"""What rates are."""
import numpy as np

# Rates.
class Rates:
    """Rates of a run."""
    peak = 1  # reached early
    def at(
        self, step, last=None,
    ):
        """The rate at a step."""
        if (step > 10):
            return f'{self.peak * step}', {
                'a': 0x1,
                **{},
            }
        return [ np.cos(x)
            for x in range(step) ]
'''


def test_comments_docstrings_and_formatting_leave_the_digest_as_it_is(tmp_path: Path) -> None:
    script = write(tmp_path, "import moray.ground")
    digests = []
    for text in (CODE, COMMENTED):
        (tmp_path / "moray/ground.py").write_text(text)
        digests.append(code_digest(script, tmp_path))
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("peak = 1", "peak = 2"),
        ("peak = 1", "peak = 1.0"),
        ("peak = 1", "peak = True"),
        ("peak = 1", "peak = '1'"),
        ("peak = 1", "peak = None"),
        ("last=None", "last=..."),
        ("last=None", "last"),
        ("last=None", "*, last=None"),
        ("step > 10", "step >= 10"),
        ("self.peak * step", "self.peak + step"),
        ("self.peak * step", "self.peak * step:.1f"),
        ("{self.peak * step}", "self.peak * step"),
        ("np.cos(x)", "np.sin(x)"),
        ("as np", "as nq"),
        ("**{}", "'b': {}"),
        ("        return [np", "            return [np"),
        # Text that isn't a docstring.
        ("    peak = 1", "    peak = 1\n    'a value'"),
    ],
)
def test_each_change_of_what_the_code_does_changes_the_digest(
    old: str, new: str, tmp_path: Path
) -> None:
    script = write(tmp_path, "import moray.ground")
    assert old in CODE
    digests = []
    for text in (CODE, CODE.replace(old, new)):
        (tmp_path / "moray/ground.py").write_text(text)
        digests.append(code_digest(script, tmp_path))
    assert digests[0] != digests[1]


def runs(python: str) -> bool:
    """Version managers have commands for versions that aren't there."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


OTHERS = ("python3.11", "python3.12", "python3.13", "python3.14")


@pytest.mark.parametrize("python", [python for python in OTHERS if runs(python)])
def test_other_versions_of_python_have_the_same_digests(python: str) -> None:
    program = """
import sys
from pathlib import Path
from moray.config.code import code_digest
print([code_digest(path, Path("src")) for path in sorted(Path("workflow/scripts").glob("*.py"))])
"""
    digests = [
        subprocess.run(
            [interpreter, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": "src"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for interpreter in (sys.executable, python)
    ]
    assert digests[0] == digests[1]
