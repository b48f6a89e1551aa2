import ast
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moray.config import schema
from moray.config.code import code_digest, code_of
from moray.config.schema import Section

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

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


# For each script: some of what it depends on, and where nothing of that may lie.
SCRIPTS: dict[str, tuple[list[str], list[str]]] = {
    "base_model": (["model/scratch.py"], ["train", "evaluate"]),
    "benchmark": (["evaluate/harness.py", "evaluate/bootstrap.py", "model/load.py"], ["train"]),
    "download": (
        ["corpus/split.py", "corpus/readers.py", "corpus/sources/text/url.py"],
        ["rows", "tasks", "model", "train", "evaluate"],
    ),
    "base_model_images": (
        ["model/classifier.py", "model/image_processor.py"],
        ["rows", "tasks", "train", "evaluate"],
    ),
    "decode": (
        ["tasks/images/rows.py", "corpus/image.py", "model/image_processor.py"],
        ["train", "evaluate"],
    ),
    "download_images": (
        ["corpus/sources/images/idx.py", "corpus/split.py"],
        ["rows", "tasks", "model", "train", "evaluate"],
    ),
    "evaluate": (["evaluate/likelihood.py", "tasks/language/loss.py"], ["train", "rows/order.py"]),
    "evaluate_pairs": (
        ["evaluate/preferences.py", "tasks/preference/loss.py", "tasks/language/loss.py"],
        ["train"],
    ),
    "evaluate_images": (
        ["evaluate/accuracy.py", "evaluate/bootstrap.py", "tasks/images/batch.py"],
        ["train", "corpus"],
    ),
    "export": (
        ["train/checkpoints/trained_model.py", "train/engine/strategies/ddp.py"],
        ["evaluate"],
    ),
    "export_images": (
        ["train/checkpoints/trained_model.py", "train/engine/statistics.py"],
        ["evaluate"],
    ),
    "finetune": (
        ["train/loop.py", "train/driver.py", "rows/order.py", "tasks/language/loss.py"],
        ["evaluate"],
    ),
    "generate": (
        ["evaluate/generation.py", "evaluate/metrics/chrf.py", "tasks/language/encode.py"],
        ["train"],
    ),
    "reference": (
        ["evaluate/likelihood.py", "tasks/preference/rows.py", "tasks/language/loss.py"],
        ["train"],
    ),
    "tokenize_pairs": (
        ["corpus/dataset.py", "tasks/preference/encode.py", "tasks/language/encode.py"],
        ["model", "train", "evaluate"],
    ),
    "predict": (["evaluate/picture.py", "evaluate/classification.py"], ["train", "corpus"]),
    "tokenize": (
        ["tasks/language/packing.py", "corpus/dataset.py"],
        ["model", "train", "evaluate"],
    ),
}

# The module that a script imports by a name from the config, if it isn't a task.
BY_NAME = {"download": "text.url", "download_images": "images.idx", "generate": "chrf"}


def test_each_script_of_the_workflow_is_held_against_what_it_depends_on() -> None:
    scripts = {path.stem for path in (ROOT / "workflow/scripts").glob("*.py")}
    assert set(SCRIPTS) <= scripts


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_depends_on_the_code_of_its_stage_and_on_no_other(
    script: str,
) -> None:
    name = BY_NAME.get(script, "language")
    files = code_of(ROOT / f"workflow/scripts/{script}.py", ROOT / "src", name)
    found = [path.relative_to(ROOT).as_posix() for path in files]
    needed, foreign = SCRIPTS[script]
    stage = [f"workflow/scripts/{script}.py", f"src/moray/stages/{script}.py"]
    assert {*stage, *(f"src/moray/{name}" for name in needed)} <= set(found)
    rooms = {Path(path).relative_to("src/moray").parts[0] for path in found if "src" in path}
    assert rooms.isdisjoint([*foreign, "errors.py", "console.py"])
    assert not any(path.startswith("src/moray/config/schema") for path in found)
    others = {path.stem for path in (ROOT / "workflow/scripts").glob("*.py")} - {script}
    assert not {f"src/moray/stages/{other}.py" for other in others} & set(found)


def imports(module: Path) -> Iterator[tuple[str, str]]:
    """Each name that a module imports by `from`, with the module that it is from."""
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("moray.config") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)


def is_section(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Section)


def modules_in(folder: str) -> list[str]:
    paths = (SOURCE / "moray" / folder).rglob("*.py")
    found = (path.relative_to(SOURCE / "moray" / folder).with_suffix("") for path in paths)
    return [".".join(path.parts) for path in found]


# All that a script could import by name.
NAMES = [*modules_in("corpus/sources"), *modules_in("evaluate/metrics"), "images", "language"]
STAGES = {
    path
    for stage in SCRIPTS
    for path in code_of(ROOT / f"workflow/scripts/{stage}.py", SOURCE, *NAMES)
}


def test_stages_of_one_task_do_not_depend_on_the_code_of_another() -> None:
    def files_of(script: str, *names: str) -> str:
        files = code_of(ROOT / f"workflow/scripts/{script}.py", ROOT / "src", *names)
        return "\n".join(path.relative_to(ROOT).as_posix() for path in files)

    for script in ("base_model", "download", "evaluate", "export", "generate", "tokenize"):
        for of_images in ("tasks/images", "image.py", "images.py", "classifier"):
            assert of_images not in files_of(script), script
    for script in ("base_model_images", "decode", "evaluate_images", "export_images", "predict"):
        assert "tasks/language" not in files_of(script), script
    assert "tasks/images" not in files_of("finetune", "language")
    assert "tasks/language" not in files_of("finetune", "images")


def test_a_new_source_or_metric_leaves_the_code_of_others_as_it_is() -> None:
    for script, folder in (("download", "corpus/sources"), ("generate", "evaluate/metrics")):
        files = code_of(ROOT / f"workflow/scripts/{script}.py", SOURCE, BY_NAME[script])
        own = (SOURCE / "moray" / folder).joinpath(*BY_NAME[script].split(".")).with_suffix(".py")
        among = {path.stem for path in files if path.parent == own.parent}
        # A URL's files are read like those of this machine.
        assert among - {"__init__", "interface", "files"} == {own.stem}


# Types of several sections; and what says which keys the result depends on.
TYPES = {"Dataset", "ImageDataset", "TextDataset", "result_keys"}


@pytest.mark.parametrize("module", sorted(STAGES), ids=lambda path: path.stem)
def test_of_the_schema_stages_take_sections_alone(module: Path) -> None:
    """What else is in it counts as without effect on a result."""
    for place, name in imports(module):
        if place.startswith("moray.config.schema"):
            thing = getattr(importlib.import_module(place), name)
            assert is_section(thing) or name in TYPES, (
                place,
                name,
            )


SECTIONS = [model for model in vars(schema).values() if is_section(model)]
# Where Ray and the state of runs are; the lineage of runs and which splits a source gives, for
# checks of the config; the datasets of a run, which stages get in `cfg`; which runs form a sweep.
METHODS = {"endpoint", "in_object_store", "base_model", "given_splits", "datasets"}
METHODS |= {"starts", "sweeps", "with_sweeps"}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_sections_hold_values_and_compute_nothing_that_a_result_depends_on(
    section: type[Section],
) -> None:
    own = {name for kind in section.mro() if is_section(kind) for name in vars(kind)}
    public = {name for name in own if not name.startswith(("_", "model_"))}
    assert public <= METHODS
