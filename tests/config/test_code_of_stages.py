"""What the stages of the workflow depend on."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moray.config import schema
from moray.config.code import code_of
from moray.config.schema import Section
from moray.config.tasks import TASKS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

# For each script, and the module that it imports by a name from the config: some of what it depends
# on, and where nothing of that may lie.
SCRIPTS: dict[tuple[str, str], tuple[list[str], list[str]]] = {
    ("base_model", ""): (["model/scratch.py"], ["train", "evaluate"]),
    ("benchmark", ""): (
        ["evaluate/harness.py", "evaluate/bootstrap.py", "model/load.py"],
        ["train"],
    ),
    ("download", "text.url"): (
        ["corpus/split.py", "corpus/readers.py", "corpus/sources/text/url.py"],
        ["rows", "tasks", "model", "train", "evaluate"],
    ),
    ("base_model_images", ""): (
        ["model/classifier.py", "model/image_processor.py"],
        ["rows", "tasks", "train", "evaluate"],
    ),
    ("decode", ""): (
        ["tasks/images/rows.py", "corpus/image.py", "model/image_processor.py"],
        ["train", "evaluate"],
    ),
    ("download_images", "images.idx"): (
        ["corpus/sources/images/idx.py", "corpus/split.py"],
        ["rows", "tasks", "model", "train", "evaluate"],
    ),
    ("evaluate", "language"): (
        ["evaluate/likelihood.py", "tasks/language/loss.py"],
        ["train", "rows/order.py"],
    ),
    ("evaluate", "preference"): (
        ["evaluate/preference.py", "tasks/preference/loss.py", "tasks/language/loss.py"],
        ["train"],
    ),
    ("evaluate", "images"): (
        ["evaluate/images.py", "evaluate/bootstrap.py", "tasks/images/batch.py"],
        ["train", "corpus"],
    ),
    ("export", ""): (
        ["train/checkpoints/trained_model.py", "train/engine/strategies/state.py"],
        ["evaluate"],
    ),
    ("export_images", ""): (
        ["train/checkpoints/trained_model.py", "train/engine/statistics.py"],
        ["evaluate"],
    ),
    ("finetune", "language"): (
        ["train/loop.py", "train/driver.py", "rows/order.py", "tasks/language/loss.py"],
        ["evaluate"],
    ),
    ("generate", ""): (
        ["evaluate/generation.py", "evaluate/metrics.py", "tasks/language/encode.py"],
        ["train"],
    ),
    ("reference", ""): (
        ["evaluate/likelihood.py", "tasks/preference/rows.py", "tasks/language/loss.py"],
        ["train"],
    ),
    ("tokenize", "preference"): (
        ["corpus/dataset.py", "tasks/preference/encode.py", "tasks/language/encode.py"],
        ["model", "train", "evaluate"],
    ),
    ("predict", ""): (["evaluate/images.py", "model/classifier.py"], ["train", "corpus"]),
    ("tokenize", "language"): (
        ["tasks/language/packing.py", "corpus/dataset.py"],
        ["model", "train", "evaluate"],
    ),
}


def test_each_script_of_the_workflow_is_held_against_what_it_depends_on() -> None:
    scripts = {path.stem for path in (ROOT / "workflow/scripts").glob("*.py")}
    assert {script for script, _ in SCRIPTS} <= scripts


@pytest.mark.parametrize(("script", "name"), SCRIPTS)
def test_a_script_depends_on_the_code_of_its_stage_and_on_no_other(script: str, name: str) -> None:
    files = code_of(ROOT / f"workflow/scripts/{script}.py", SOURCE, name)
    found = [path.relative_to(ROOT).as_posix() for path in files]
    needed, foreign = SCRIPTS[script, name]
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
NAMES = [*modules_in("corpus/sources"), *TASKS]
NAMES += modules_in("train/engine/strategies")
STAGES = {
    path
    for stage, _ in SCRIPTS
    for path in code_of(ROOT / f"workflow/scripts/{stage}.py", SOURCE, *NAMES)
}


def test_stages_of_one_task_do_not_depend_on_the_code_of_another() -> None:
    def files_of(script: str, *names: str) -> str:
        files = code_of(ROOT / f"workflow/scripts/{script}.py", SOURCE, *names)
        return "\n".join(path.relative_to(ROOT).as_posix() for path in files)

    for script in ("base_model", "download", "evaluate", "export", "generate", "tokenize"):
        for of_images in ("tasks/images", "image.py", "images.py", "classifier"):
            assert of_images not in files_of(script, "language"), script
    for script in ("base_model_images", "decode", "evaluate", "export_images", "predict"):
        assert "tasks/language" not in files_of(script, "images"), script
    for script in ("evaluate", "tokenize"):
        assert "preference" not in files_of(script, "language"), script
    assert "tasks/images" not in files_of("finetune", "language")
    assert "tasks/language" not in files_of("finetune", "images")


def test_a_new_source_leaves_the_code_of_others_as_it_is() -> None:
    files = code_of(ROOT / "workflow/scripts/download.py", SOURCE, "text.url")
    own = SOURCE / "moray/corpus/sources/text/url.py"
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
            assert is_section(thing) or name in TYPES, (place, name)


SECTIONS = {
    model.__name__: model
    for module in pkgutil.iter_modules(schema.__path__, "moray.config.schema.")
    for model in vars(importlib.import_module(module.name)).values()
    if is_section(model)
}
# Where Ray and the state of runs are; the lineage of runs, and a source's splits and libraries, for
# checks of the config; the files and the state that a source's rows depend on, which are input and
# params of its rule; the datasets of a run, which stages get in `cfg`; which runs form a sweep.
METHODS = {"endpoint", "in_object_store", "base_model", "given_splits", "libraries", "datasets"}
METHODS |= {"files", "state", "starts", "sweeps", "with_sweeps"}


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_sections_hold_values_and_compute_nothing_that_a_result_depends_on(
    section: type[Section],
) -> None:
    own = {name for kind in section.mro() if is_section(kind) for name in vars(kind)}
    public = {name for name in own if not name.startswith(("_", "model_"))}
    assert public <= METHODS
