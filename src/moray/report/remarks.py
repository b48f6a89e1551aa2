"""What a reader of a run's figures should know of it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from moray.config.tasks import TASKS
from moray.provenance.lineage import LINEAGE
from moray.results.run import Run, read_json

# Counts in the manifests of stores, and what they are counts of.
_LOST = {
    "dropped_documents": "dropped, because they didn't fit in a row or hold no pair",
    "truncated_pairs": "truncated",
}


def remarks(run: Run, notes: Iterable[str]) -> list[tuple[str, str]]:
    """Warnings and notes about a run.

    Args:
        run: the run.
        notes: those of its history.

    Returns:
        Pairs of kind (`error`, `warning` or `note`) and text.
    """
    return [*_of_training(run), *_of_history(notes), *_of_data(run)]


def _of_training(run: Run) -> Iterator[tuple[str, str]]:
    record = run.record
    if run.error:
        yield "error", run.error
    elif record is None:
        yield "warning", "not finished: these are the figures so far"
    elif record["resumed_from"]:
        yield "warning", f"resumed from step {record['resumed_from']:,}; the time is from there on"
    origin = record and record["continued_from"]
    if origin:
        differing = ", ".join(origin["differences"])
        text = f"continued at step {origin['step']:,} from {origin['checkpoint']}; different: "
        yield "warning", text + differing


def _of_history(notes: Iterable[str]) -> Iterator[tuple[str, str]]:
    for note in notes:
        yield ("warning" if note.startswith("skipped") else "note"), note


def _of_data(run: Run) -> Iterator[tuple[str, str]]:
    lineage = run.read(f"model/{LINEAGE}") or {}
    for name, description in lineage.get("datasets", {}).items():
        if copies := sum(description.get("duplicates", {}).values()):
            yield "note", f"dataset {name}: {copies:,} duplicates left out"
    results = run.folder.parent.parent
    for path in lineage.get("inputs", {}):
        if path.startswith("results/tokens/"):
            manifest = read_json(results / Path(path).relative_to("results")) or {}
            yield from _of_store(Path(path).parent.name, manifest)


def _of_store(name: str, manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for split, facts in manifest.get("splits", {}).items():
        for key, fate in _LOST.items():
            if count := facts.get(key):
                what = TASKS[manifest["task"]].scored
                yield "warning", f"tokens {name}: {count:,} {what} of {split} {fate}"
