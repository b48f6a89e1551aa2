import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from moray.config.tasks import TASKS

SOURCE = Path(__file__).parents[1] / "src"

# From the top. A room imports from floors below; rooms on one floor don't know each other. A module
# is in the room that has most of its name: tasks build on the core, which imports them by name.
FLOORS = [
    {"cli"},
    {"extras"},
    {"tasks"},
    {"stages"},
    {"report"},
    {"results"},
    {"evaluate", "train"},
    {"proofs"},
    {"model"},
    {"rows"},
    {"corpus"},
    {"workers"},
    {"storage", "tracking"},
    {
        "background",
        "config",
        "provenance",
        "errors",
        "console",
        "hub",
        "lines",
        "machine",
        "project",
    },
]

# Within training: the driver, what it starts, and down to what all of them know.
TRAIN_FLOORS = [
    {"driver"},
    {"loop"},
    {"failures", "proof"},
    {"checkpoint", "preemption"},
    {"engine", "micro_batch", "step", "supervision"},
    {"kernels", "strategies"},
    {"checks"},
    {"memory"},
    {
        "adamw",
        "history",
        "identity",
        "optimizer",
        "performance",
        "schedule",
        "spec",
        "statistics",
        "task",
        "trained",
    },
]


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(SOURCE.glob("moray/**/*.py"))}


@cache
def imported(name: str) -> set[str]:
    """All names that a module imports, those of modules as long as can be."""
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively, which its rules can't follow"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in FILES else str(node.module))
    return found


def imports(by: tuple[str, ...], of: str) -> Iterator[tuple[str, str]]:
    """A module and one that it imports, each of whose names begins so."""
    for module in FILES:
        if module.startswith(by):
            yield from ((module, other) for other in imported(module) if other.startswith(of))


def room_of(module: str, package: str, rooms: Iterable[str]) -> str | None:
    """The room of a package that a module lies in."""
    name = f"{module.removeprefix(package)}."
    return max((room for room in rooms if name.startswith(f"{room}.")), key=len, default=None)


def upward(package: str, floors: list[set[str]]) -> set[tuple[str, str]]:
    """Imports between rooms of a package that lead to no floor below."""
    floor_of = {room: number for number, rooms in enumerate(floors) for room in rooms}
    found = set()
    for module, other in imports((package,), package):
        own, room = (room_of(name, package, floor_of) for name in (module, other))
        assert own, f"{module} lies in no room"
        assert room, f"{other} lies in no room"
        on_the_ground = floor_of[own] == floor_of[room] == len(floors) - 1
        if own != room and floor_of[own] >= floor_of[room] and not on_the_ground:
            found.add((module, other))
    return found


def test_each_module_lies_in_a_room_of_the_house() -> None:
    rooms = set().union(*FLOORS)
    homeless = [name for name in FILES if not room_of(name, "moray.", rooms)]
    assert homeless == ["moray"]


def test_a_room_imports_only_from_floors_below() -> None:
    assert not (found := upward("moray.", FLOORS)), found


def test_a_room_of_training_imports_only_from_floors_below() -> None:
    assert not (found := upward("moray.train.", TRAIN_FLOORS)), found


def test_training_does_not_know_the_corpus() -> None:
    """It sees rows alone."""
    found = list(imports(("moray.train", "moray.rows"), "moray.corpus"))
    assert not found, found


def task_of(module: str) -> str | None:
    """The task that a module belongs to."""
    found = re.match(r"moray\.tasks\.(\w+)", module)
    return found[1] if found and found[1] in TASKS else None


def test_the_core_knows_tasks_by_name_alone() -> None:
    """Some build on others; extras that are for text build on language."""
    builds_on = {
        "distillation": {"language"},
        "preference": {"language"},
        "kto": {"language", "preference"},
        "classification": {"language"},
        "reward": {"classification", "language"},
        "token_classification": {"classification", "language"},
    }
    found = [
        (module, other)
        for module, other in imports(("moray.",), "moray.tasks.")
        if (task := task_of(other))
        and task_of(module) != task
        and task not in builds_on.get(task_of(module) or "", ())
        and not (task == "language" and extra_of(module))
    ]
    assert not found, found


def extra_of(module: str) -> str | None:
    """The extra that a module belongs to."""
    found = re.match(r"moray\.extras\.(\w+)", module)
    return found[1] if found else None


def test_the_core_and_extras_know_extras_by_name_alone() -> None:
    """`config.extras` has the names, so that the folder of an extra can be deleted."""
    found = [
        (module, other)
        for module, other in imports(("moray.",), "moray.extras.")
        if extra_of(module) != extra_of(other)
    ]
    assert not found, found
    spelled = [
        name
        for name, path in FILES.items()
        if not extra_of(name) and re.search(r"moray\.extras\.\w", path.read_text())
    ]
    assert not spelled, spelled


def test_no_modules_import_each_other_in_circles() -> None:
    graph = {name: imported(name) & FILES.keys() for name in FILES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(FILES)


def test_nothing_in_the_package_imports_snakemake() -> None:
    found = list(imports(("moray",), "snakemake"))
    assert not found, found


def test_the_config_needs_no_library_but_pydantic_and_the_standard_one() -> None:
    heavy = {"datasets", "numpy", "optuna", "pyarrow", "ray", "torch", "transformers"}
    found = [
        (module, other)
        for module, other in imports(("moray.config",), "")
        if other.split(".")[0] in heavy
    ]
    assert not found, found


def test_no_module_is_long_or_a_place_for_odds_and_ends() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in FILES.items()}
    long = {name: length for name, length in lengths.items() if length > 400}
    assert not long, long
    vague = {"utils", "util", "helpers", "misc", "common"}
    found = [name for name, path in FILES.items() if path.stem in vague]
    assert not found, found
