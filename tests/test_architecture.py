import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from moray.config.tasks import TASKS

SOURCE = Path(__file__).parents[1] / "src"

# From the top. A room imports from floors below; rooms on one floor don't know each other.
FLOORS = [
    {"cli"},
    {"chat", "doctor", "stages"},
    {"report", "sweeps"},
    {"results"},
    {"evaluate", "serving", "train"},
    {"tasks"},
    {"model"},
    {"rows"},
    {"corpus"},
    {"storage", "tracking", "workers"},
    {
        "background",
        "config",
        "provenance",
        "errors",
        "console",
        "hub",
        "lines",
        "machine",
        "processes",
        "project",
    },
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
GROUND = len(FLOORS) - 1

# Within training: the driver, what it starts, and down to what all of them know.
TRAIN_FLOORS = [
    {"driver", "drill"},
    {"entry", "requirements"},
    {"loop"},
    {"continuation"},
    {"supervision"},
    {"checkpoints"},
    {"engine"},
    {"data", "early_stopping", "feed", "history", "identity", "job", "schedule", "throughput"},
]
TRAIN_FLOOR_OF = {room: number for number, rooms in enumerate(TRAIN_FLOORS) for room in rooms}

# Training sees a corpus as rows alone.
FORBIDDEN = {("train", "corpus"), ("rows", "corpus")}


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(SOURCE.glob("moray/**/*.py"))}


def imported(name: str) -> Iterator[str]:
    """All names that a module imports, those of modules as long as can be."""
    for node in ast.walk(ast.parse(FILES[name].read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively, which its rules can't follow"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in FILES else str(node.module)


def room(module: str) -> str:
    return module.split(".")[1]


MODULES = [name for name in FILES if name != "moray"]


@pytest.mark.parametrize("module", MODULES)
def test_each_module_lies_in_a_room_of_the_house(module: str) -> None:
    assert room(module) in FLOOR_OF


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_only_from_floors_below(module: str) -> None:
    own = room(module)
    for other in {room(name) for name in imported(module) if name.startswith("moray.")} - {own}:
        on_the_ground = FLOOR_OF[own] == FLOOR_OF[other] == GROUND
        assert FLOOR_OF[own] < FLOOR_OF[other] or on_the_ground, f"{module} imports {other}"
        assert (own, other) not in FORBIDDEN, f"{module} imports {other}"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("moray.train.")])
def test_a_room_of_training_imports_only_from_floors_below(module: str) -> None:
    own = module.split(".")[2]
    rooms = {name.split(".")[2] for name in imported(module) if name.startswith("moray.train.")}
    for other in rooms - {own}:
        lowest = TRAIN_FLOOR_OF[own] == TRAIN_FLOOR_OF[other] == len(TRAIN_FLOORS) - 1
        assert TRAIN_FLOOR_OF[own] < TRAIN_FLOOR_OF[other] or lowest, f"{module} imports {other}"


def test_training_names_no_task() -> None:
    """Only the two modules that all tasks share."""
    shared = {"moray.tasks.interface", "moray.tasks.of_store"}
    for module in MODULES:
        if module.startswith(("moray.train.", "moray.rows.", "moray.workers.")):
            tasks = {name for name in imported(module) if name.startswith("moray.tasks.")}
            assert tasks <= shared, f"{module} imports {tasks - shared}"


def task_of(module: str) -> str | None:
    """The task that a module belongs to."""
    found = re.match(r"moray\.(?:evaluate\.)?tasks\.(\w+)", module)
    return found[1] if found and found[1] in TASKS else None


def test_tasks_do_not_know_each_other_but_preference_builds_on_language() -> None:
    built_on = {"preference": {"language"}}
    for module in MODULES:
        if own := task_of(module):
            others = {task_of(name) for name in imported(module)} - {own, None}
            assert others <= built_on.get(own, set()), f"{module} imports {others}"


def test_no_modules_import_each_other_in_circles() -> None:
    graph = {name: {other for other in imported(name) if other in FILES} for name in FILES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(FILES)


@pytest.mark.parametrize("module", FILES)
def test_nothing_in_the_package_imports_snakemake(module: str) -> None:
    assert "snakemake" not in {name.split(".")[0] for name in imported(module)}


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("moray.config")])
def test_the_config_needs_no_library_but_pydantic_and_the_standard_one(module: str) -> None:
    heavy = {"datasets", "numpy", "optuna", "pyarrow", "ray", "torch", "transformers"}
    assert heavy.isdisjoint(name.split(".")[0] for name in imported(module))


@pytest.mark.parametrize("module", FILES)
def test_no_module_is_long_or_a_place_for_odds_and_ends(module: str) -> None:
    assert len(FILES[module].read_text().splitlines()) <= 400
    assert FILES[module].stem not in {"utils", "util", "helpers", "misc", "common"}
