"""Where a user wrote what a fault is about, if it isn't where the schema has it."""

from collections.abc import Callable, Collection, Iterable

from moray.errors import UserError


def moved(faults: Iterable[UserError], path_of: Callable[[UserError], str]) -> list[UserError]:
    """The faults with other paths, one for each path."""
    by_path: dict[str, UserError] = {}
    for fault in faults:
        path = path_of(fault)
        by_path.setdefault(path, UserError(path, fault.problem, fault.remedy))
    return list(by_path.values())


def run_and_key(path: str, runs: Collection[str]) -> tuple[str, str] | None:
    """Which of some runs a path is in, and its key there; None if it is in none.

    Names have dots in them, and one can begin with another.
    """
    names = (name for name in runs if f"{path}.".startswith(f"runs.{name}."))
    run = max(names, key=len, default=None)
    if run is None:
        return None
    return run, path.removeprefix(f"runs.{run}").removeprefix(".")
