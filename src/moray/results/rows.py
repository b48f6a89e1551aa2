"""The rows of the data frames, from the files of one run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moray.provenance.manifest import MANIFEST
from moray.results.run import Run

# What eval.json has the figures of; the third is tuned minus base.
MODELS = ("base", "tuned", "difference")
_SPEED = "_per_second"
_FACTS = ("exported_step", "resumed_from", "seconds", "device", "num_workers", "precision")


def run_row(run: Run) -> dict[str, Any]:
    """What is known of a run as a whole, besides its history."""
    record = run.record or {}
    inputs = record.get("inputs", {})
    manifest = run.read(f"model/{MANIFEST}") or {}
    return {
        "status": run.status,
        "error": run.error,
        "task": run.task,
        "base": _name_of(Path(inputs["start"])) if inputs else None,
        "datasets": ", ".join(inputs.get("stores", ())) or None,
        "parameters": manifest.get("parameters"),
        **{fact: record.get(fact) for fact in _FACTS},
    }


def history_rows(run: Run) -> Iterator[dict[str, Any]]:
    """The lines of a run's history, and of which kind they are."""
    for line in run.history():
        kind = "note" if "note" in line else "evaluation" if "eval_loss" in line else "train"
        # Only the evaluations of mixtures are nested, and flattening takes longer than reading.
        yield {"kind": kind, **(dict(flat(line)) if "eval_losses" in line else line)}


def progress(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How far a run got, and its mean speed over the logged steps.

    Args:
        history: what `history_rows` yields for the run.
    """
    steps, seconds, units, unit = 0, 0.0, 0.0, None
    for line in history:
        if line["kind"] == "train":
            speed = next(key for key in line if key.endswith(_SPEED))
            unit = speed.removesuffix(_SPEED)
            elapsed = (line["step"] - steps) * line["step_seconds"]
            steps, seconds, units = line["step"], seconds + elapsed, units + elapsed * line[speed]
    return {
        "steps": steps if history else None,
        "num_steps": history[-1]["num_steps"] if history else None,
        "throughput": units / seconds if seconds else None,
        "unit": unit,
    }


def score_rows(run: Run) -> Iterator[dict[str, Any]]:
    """The figures of a run's continuations, of its evaluation and of its benchmarks."""
    scores = run.read("eval.json") or {}
    parts = {None: scores, **scores.get("datasets", {})} if scores else {}
    tasks = (run.read("benchmarks.json") or {}).get("tasks", {})
    metrics = (run.read("generation.json") or {}).get("metrics", {})
    for metric, means in metrics.items():
        for model in MODELS:
            yield {"dataset": None, "model": model, "metric": metric, **means[model]}
    for dataset, part in [*parts.items(), *tasks.items()]:
        for model in MODELS:
            for metric, figure in part[model].items():
                yield {"dataset": dataset, "model": model, "metric": metric, **figure}


def sample_rows(run: Run) -> Iterator[dict[str, Any]]:
    """The samples of a run."""
    file = run.folder / "samples.jsonl"
    if file.is_file():
        for number, line in enumerate(file.read_text().splitlines()):
            yield {"number": number, **json.loads(line)}


def flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested sections, by their dotted keys."""
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _name_of(start: Path) -> str:
    """The name of the base model or of the run that a folder belongs to."""
    return start.parent.name if start.name == "model" else start.name
