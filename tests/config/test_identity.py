"""Which code decides the results of stages."""

import ast
import importlib
import os
import pkgutil
import shutil
import subprocess
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from moray.config import schema
from moray.config.identity import (
    DECIDING,
    IMPORTED_ONLY,
    NEVER_DECIDING,
    PACKAGE,
    code_digest,
    deciding_files,
    meaning,
)
from moray.config.schema.base import Section
from moray.config.schema.train import STRATEGIES
from moray.config.tasks import TASKS

ROOT = Path(__file__).parents[2]
STAGES = {stage.partition(" ")[0] for stage in DECIDING}
# Modules that import others by a name from the config.
BY_NAME = {
    "corpus/sources/__init__": "moray.corpus.sources.{}",
    "stages/base_model": "moray.stages.base_model_{}",
    "stages/evaluate": "moray.evaluate.{}",
    "stages/export": "moray.stages.export_{}",
    "stages/tokenize": "moray.tasks.{}.tokens",
    "tasks/__init__": "moray.tasks.{}.task",
    "train/strategies/__init__": "moray.train.strategies.{}",
}


# The names that stages import modules by.
NAMES: dict[str, list[str]] = {
    "base_model": ["text", "images"],
    "download": [path.stem for path in (PACKAGE / "corpus/sources").glob("[!_]*.py")],
    "evaluate": [*TASKS],
    "export": ["text", "images"],
    "finetune": [*TASKS],
    "generate": ["chrf", "doctests"],
    "tokenize": ["language", "preference"],
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def imported(path: Path) -> list[str]:
    """The names of all that a module imports."""
    found: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def files_of(module: str) -> list[Path]:
    if not module.startswith("moray."):
        return []
    place = PACKAGE.joinpath(*module.split(".")[1:])
    return [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]


def stem(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


@cache
def closure(stage: str, *names: str) -> set[Path]:
    """All modules that a stage imports, directly or not, but those that only hold a docstring.

    Args:
        stage: the stage.
        names: those by which it imports modules.
    """
    found: set[Path] = set()
    waiting = [PACKAGE / f"stages/{stage}.py"]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            # What a plan runs, it runs apart, without values.
            if path.parent.name == "planning":
                continue
            modules = [*imported(path), *map(BY_NAME.get(stem(path), "").format, names)]
            waiting += [file for module in modules for file in files_of(module)]
    return {path for path in found if len(parsed(path).body) > 1}


def deciding(stage: str, *names: str) -> set[Path]:
    return {*deciding_files(stage, *filter(None, names))}


def is_in(path: Path, patterns: Iterable[str]) -> bool:
    return any(fnmatch(stem(path), pattern.removeprefix("./")) for pattern in patterns)


def test_each_module_that_a_stage_imports_is_in_one_of_the_tables() -> None:
    forgotten = {}
    for stage in STAGES:
        for name in NAMES.get(stage, [""]):
            known = deciding(stage, name)
            if stage == "search":
                # The code of its trainings is in another param.
                known |= deciding("finetune", *TASKS)
            others = (*NEVER_DECIDING, *IMPORTED_ONLY.get(stage, ()))
            rest = [stem(path) for path in closure(stage, name) - known if not is_in(path, others)]
            if rest:
                forgotten[stage, name] = sorted(rest)
    assert forgotten == {}


def test_a_stage_has_a_script_and_the_other_way_round() -> None:
    assert {path.stem for path in (ROOT / "workflow/scripts").glob("*.py")} == STAGES


def test_the_tables_name_no_module_that_is_not_there() -> None:
    for stage, patterns in DECIDING.items():
        for pattern in patterns:
            filled = pattern.replace("{}", "*")
            assert [*PACKAGE.glob(filled), *PACKAGE.glob(f"{filled}.py")], (stage, pattern)
    for pattern in chain(NEVER_DECIDING, *IMPORTED_ONLY.values()):
        assert [*PACKAGE.glob(f"{pattern}.py")], pattern


def test_what_decides_a_result_is_imported_for_it() -> None:
    """A module that isn't imported can't decide a result."""
    surplus = {}
    for stage in STAGES:
        for name in NAMES.get(stage, [""]):
            decides = {path for path in deciding(stage, name) if path.suffix == ".py"}
            # Strategies are chosen when a training starts.
            rest = {stem(path) for path in decides - closure(stage, name, *STRATEGIES)}
            if rest := {path for path in rest if not path.endswith("/__init__")}:
                surplus[stage, name] = sorted(rest)
    assert surplus == {}


def decided_by(pattern: str) -> set[tuple[str, str]]:
    """The stages, and the names of tasks, modalities, sources or metrics, that a module decides."""
    return {
        (stage, name)
        for stage in STAGES
        for name in NAMES.get(stage, [""])
        if any(fnmatch(stem(path), pattern) for path in deciding(stage, name))
    }


def test_a_module_decides_what_it_should() -> None:
    trained = {("finetune", task) for task in TASKS}
    assert decided_by("train/schedule") == {*trained, ("smoke_test", "")}
    # Preference runs tokenise and score as language runs do, and build on their loss.
    on_text = {("finetune", "language"), ("finetune", "preference")}
    evaluated = {("evaluate", "language"), ("evaluate", "preference")}
    assert decided_by("tasks/language/loss") == {*on_text, *evaluated, ("reference", "")}
    on_pairs = {("finetune", "preference"), ("evaluate", "preference")}
    assert decided_by("tasks/preference/task") == on_pairs
    assert ("tokenize", "language") in decided_by("tasks/language/rows")
    of_images = {("finetune", "images"), ("evaluate", "images"), ("predict", "")}
    assert decided_by("tasks/images/task") == of_images
    assert decided_by("corpus/sources/text_url") == {("download", "text_url")}
    on_images = {("base_model", "images"), ("export", "images")}
    assert decided_by("model/image_processor") == {*on_images, ("decode", "")}
    assert decided_by("stages/*_images") == on_images
    assert decided_by("stages/*_text") == {("base_model", "text"), ("export", "text")}
    seen = decided_by("corpus/image")
    assert {stage for stage, _ in seen} == {"decode", "download"}
    assert all(name.startswith("images_") for stage, name in seen if stage == "download")
    for inert in ("errors", "console", "storage/*", "train/supervision", "provenance/*"):
        assert decided_by(inert) == set(), inert
    assert {stage for stage, _ in decided_by("tracking/*")} == {"track"}


CODE = """
import numpy as np


class Rates:
    peak = 1

    def at(self, step, last=None):
        if step > 10:
            raise UserError("a.key", f"got {step}", "lower it")
        say(f"step {step}")
        return f"{self.peak * step}", {"a": 1, **{}}
"""
READ_ONLY = '''"""What rates are."""
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
            raise UserError(
                "a.key", f"{step} is more than {10}", "use a smaller one")
        say("another step")
        return f'{self.peak * step}', {
            'a': 0x1,
            **{},
        }
'''


def test_comments_docstrings_formatting_and_messages_do_not_count() -> None:
    assert meaning(CODE.encode()) == meaning(READ_ONLY.encode())


def test_each_change_of_what_the_code_does_counts() -> None:
    changes = [
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
        ("as np", "as nq"),
        ("**{}", "'b': {}"),
        ("        say(f", "            say(f"),
        ("UserError(", "ValueError("),
        ("raise UserError", "UserError"),
        # Text that isn't a docstring.
        ("    peak = 1", "    peak = 1\n    'a value'"),
    ]
    for old, new in changes:
        assert old in CODE
        assert meaning(CODE.encode()) != meaning(CODE.replace(old, new).encode()), (old, new)


PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")


def runs(python: str) -> bool:
    """Version managers have commands for versions that aren't there."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("python", [name for name in PYTHONS if runs(name)])
def test_other_versions_of_python_have_the_same_digests(python: str) -> None:
    program = "from moray.config.identity import *; print([*map(code_digest, DECIDING)])"
    done = subprocess.run(
        [python, "-c", program],
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{[*map(code_digest, DECIDING)]}\n"


def is_section(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Section)


# A type of several sections; what follows if a comparison doesn't hold; what says which keys the
# result depends on; and what the report leaves out unless it is told which runs to show, as its
# stage is.
ALLOWED = {"Dataset", "Proofs", "result_keys", "SMOKE_TEST_RUN"}


def test_of_the_schema_deciding_code_takes_sections_alone() -> None:
    """What else is in the schema counts as without effect on a result."""
    files = {
        path
        for stage in STAGES
        for path in deciding_files(stage, *NAMES.get(stage, ()))
        if path.suffix == ".py"
    }
    for path in files:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(
                "moray.config.schema"
            ):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    known = is_section(getattr(module, alias.name)) or alias.name in ALLOWED
                    assert known, (path, alias.name)


# Where Ray and the state of runs are; the lineage of runs, and a source's splits and libraries, for
# checks of the config; the files and the state that a source's rows depend on, which are input and
# params of its rule; the datasets of a run and who trains on them, which stages get in `cfg`; which
# runs form a sweep.
METHODS = {"endpoint", "in_object_store", "base_model", "given_splits", "libraries", "datasets"}
METHODS |= {"files", "state", "starts", "sweeps", "trained_by", "with_sweeps"}
# What changes no result but by rounding.
METHODS |= {"concurrent", "micro_batch_rows", "shares"}
# What follows if a comparison doesn't hold.
METHODS |= {"proofs_of_dataset", "proofs_of_model"}


def test_sections_hold_values_and_compute_nothing_that_a_result_depends_on() -> None:
    sections = {
        model
        for module in pkgutil.iter_modules(schema.__path__, "moray.config.schema.")
        for model in vars(importlib.import_module(module.name)).values()
        if is_section(model)
    }
    assert sections
    for section in sections:
        own = {name for kind in section.mro() if is_section(kind) for name in vars(kind)}
        public = {name for name in own if not name.startswith(("_", "model_"))}
        assert public <= METHODS, section
