"""Results as they were recorded: `make golden` records those of this version.

A row of `moray.config.versions.RESULTS` whose results changed is recorded once its version is
raised, if what it is made from changed, or if a library has another version.
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

from golden.around import is_there
from golden.results import WITHOUT, results

from moray.config.versions import RESULTS

FILE = Path(__file__).with_name("recorded.json")
# Figures of another processor differ in their last digits.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
_MOST_SHOWN = 3
ROWS = sorted(row for row in RESULTS.keys() - WITHOUT if is_there(row))
Record = dict[str, Any]
# What the small runs of a row are made from.
MADE_FROM: dict[str, tuple[str, ...]] = {
    "base_model images": ("download",),
    "base_model labelled text": ("download",),
    "base_model text": ("download",),
    "benchmark": ("export text",),
    "choose": ("export text",),
    "classify": ("export labelled text",),
    "classify reward": ("finetune reward",),
    "decode": ("base_model images",),
    "evaluate classification": ("export labelled text",),
    "evaluate images": ("export images",),
    "evaluate kto": ("export text",),
    "evaluate language": ("export text",),
    "evaluate preference": ("export text",),
    "evaluate reward": ("finetune reward",),
    "evaluate token_classification": ("finetune token_classification",),
    "export images": ("finetune images",),
    "export labelled text": ("finetune classification",),
    "export text": ("finetune language", "finetune preference"),
    "finetune classification": ("tokenize_labelled",),
    "finetune distillation": ("teacher",),
    "finetune images": ("decode",),
    "finetune kto": ("tokenize kto",),
    "finetune language": ("tokenize language",),
    "finetune preference": ("reference",),
    "finetune reward": ("tokenize_labelled reward",),
    "finetune token_classification": ("tokenize_labelled",),
    "generate": ("export text",),
    "gguf": ("export text",),
    "predict": ("export images",),
    "push": ("export text",),
    "reference": ("tokenize preference",),
    "search": ("tokenize language",),
    "teacher": ("tokenize language",),
    "tokenize kto": ("base_model text",),
    "tokenize language": ("base_model text",),
    "tokenize preference": ("base_model text",),
    "tokenize_labelled": ("base_model labelled text",),
    "tokenize_labelled reward": ("base_model labelled text",),
}


def read() -> Record:
    """What was recorded: by row, its version and results; and what is of no row."""
    recorded: Record = json.loads(FILE.read_text()) if FILE.is_file() else {}
    return recorded


def make(folder: Path, main: bool = True, around: bool = True) -> dict[str, Any]:
    """The results of this version, made in a process of their own; see `results`."""
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        return executor.submit(results, folder, main, around).result()


def faults(recorded: Record, made: dict[str, Any]) -> dict[str, str]:
    """By row, what is wrong with its results, unless something is with what they are made from."""
    rows = [row for row in ROWS if row in made]
    wrong = {row: text for row in rows if (text := _fault(row, recorded.get(row), made))}
    return {row: text for row, text in wrong.items() if wrong.keys().isdisjoint(_origins(row))}


def _origins(row: str) -> set[str]:
    nearest = MADE_FROM.get(row, ())
    return {*nearest}.union(*map(_origins, nearest))


def _fault(row: str, recorded: Record | None, made: dict[str, Any]) -> str | None:
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


def _as_before(recorded: Record, made: dict[str, Any]) -> dict[str, Any]:
    """What was made, without results of runs and datasets that the experiment didn't have."""
    rows = made.keys() & recorded.keys() & {*ROWS}
    return made | {row: _shared(recorded[row]["results"], made[row]) for row in rows}


def _shared(before: Any, after: Any) -> Any:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    return {key: _shared(before[key], after[key]) for key in after if key in before}


def main() -> None:
    """Record results, unless some changed under the same version."""
    recorded = read()
    with TemporaryDirectory() as folder:
        made = make(Path(folder))
    if recorded.get("libraries") == made["libraries"]:
        found = faults(recorded, _as_before(recorded, made))
        versions = {row: recorded.get(row, {}).get("version") for row in found}
        if same := [found[row] for row in found if versions[row] == RESULTS[row]]:
            sys.exit("\n".join(same))
    new = {row: {"version": RESULTS[row], "results": made[row]} for row in ROWS}
    new = {key: made[key] for key in ("libraries", "proofs")} | new
    # A line each, so that a difference shows which changed.
    lines = [f"{json.dumps(row)}: {json.dumps(new[row], ensure_ascii=False)}" for row in new]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
