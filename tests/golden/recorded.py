"""Results as they were recorded: `make golden` records those of this version.

A row of `moray.config.versions.RESULTS` whose results changed is recorded once its version is
raised, or if a library has another version.
"""

import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from golden.results import WITHOUT, results

from moray.config.versions import RESULTS

FILE = Path(__file__).with_name("recorded.json")
# Figures of another processor differ in their last digits.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
_MOST_SHOWN = 3
ROWS = sorted(RESULTS.keys() - WITHOUT)
Record = dict[str, Any]


def read() -> Record:
    """What was recorded: by row, its version and results; and the versions of libraries."""
    recorded: Record = json.loads(FILE.read_text()) if FILE.is_file() else {}
    return recorded


def make(folder: Path) -> dict[str, Any]:
    """The results of this version, made in a process of their own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        return executor.submit(results, folder).result()


def fault(row: str, recorded: Record | None, made: dict[str, Any]) -> str | None:
    """What is wrong with the results of a row; None if they are those of its version."""
    version = RESULTS[row]
    if recorded is None or recorded["version"] != version:
        return (
            f"results of `{row}` are recorded for version {recorded and recorded['version']}, and "
            f"it is {version} now: make golden"
        )
    if found := list(differences(recorded["results"], made[row])):
        shown = "; ".join(found[:_MOST_SHOWN])
        return f"results of `{row}` changed: raise its version, or undo it ({shown})"
    return None


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two results differ; figures to four digits."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key), after.get(key), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{path}/{number}")
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
            yield f"{path[1:]}: {before} → {after}"
    elif before != after:
        yield f"{path[1:]}: {before} → {after}"


def main() -> None:
    """Record results, unless some changed under the same version."""
    recorded = read()
    with TemporaryDirectory() as folder:
        made = make(Path(folder))
    if recorded.get("libraries") == made["libraries"]:
        same = [row for row in ROWS if recorded.get(row, {}).get("version") == RESULTS[row]]
        if faults := [found for row in same if (found := fault(row, recorded[row], made))]:
            sys.exit("\n".join(faults))
    new = {row: {"version": RESULTS[row], "results": made[row]} for row in ROWS}
    new = {"libraries": made["libraries"]} | new
    # A line each, so that a difference shows which changed.
    lines = [f"{json.dumps(row)}: {json.dumps(new[row], ensure_ascii=False)}" for row in new]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
