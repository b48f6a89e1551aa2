"""Everything about one run, for its part of the page."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from moray.config.schema.base import result_keys
from moray.config.schema.experiment import Sections
from moray.config.schema.train import Train
from moray.config.tasks import MODALITIES, SCORED, TASKS, TaskName, module_of
from moray.corpus.overlap import overlap_messages
from moray.proofs.comparison import short
from moray.provenance.lineage import LINEAGE
from moray.provenance.manifest import PROOF
from moray.report.confusion import confusion_of
from moray.report.lineage import lineage_of
from moray.report.overview import verdict
from moray.report.quantities import has_value
from moray.results import FIGURES, Results, Run, flat

# There is no adapter by default, so all of its keys differ.
_DEFAULTS = {"train": result_keys(Train())} | {
    task.section_name: result_keys(section)
    for task in TASKS.values()
    if task.section_path and (section := attrgetter(task.section_path)(Sections()))
}
# Keys of generation.json that aren't settings.
_NOT_SAMPLING = {"metrics", "prompts", "inputs", "proof", "sha256"}
# Counts in the manifests of stores, and what they are counts of.
_LOST = {
    "dropped_documents": "dropped, because they didn't fit in a row or hold no pair",
    "cut_documents": "cut, because they didn't fit in a row",
}


@dataclass(frozen=True)
class Limits:
    """How much of what a page holds of each run at most."""

    points: int
    samples: int
    characters: int
    files: int
    classes: int
    figure_bytes: int

    @classmethod
    def of(cls, runs: int) -> "Limits":
        def shared(whole: int, least: int, most: int) -> int:
            return max(least, min(most, whole // max(1, runs)))

        return cls(
            points=shared(60_000, 60, 500),
            samples=shared(1_000, 2, 16),
            characters=shared(600_000, 600, 4_000),
            files=shared(2_000, 4, 20),
            classes=shared(1_000, 10, 30),
            figure_bytes=1_500_000 // max(1, runs),
        )


def _task_of(run: Run, evaluation: dict[str, Any] | None) -> TaskName:
    """The task of a run; of one whose settings are damaged, by what was scored."""
    for name, task in TASKS.items():
        if run.task is None and evaluation and task.scored in evaluation:
            return name
    return run.task or "language"


def details_of_run(
    results: Results, run: Run, notes: list[str], samples: list[dict[str, Any]], limits: Limits
) -> dict[str, Any]:
    """The details of a run for its template, besides its row in the overview.

    It includes `part`, the template of what is its task's or its modality's own, for which a
    function of this name in the module `report` beside it has the values; None if there is none.
    """
    record, evaluation = run.record or {}, run.figures("eval.json")
    generation = run.figures("generation.json") or {}
    task = _task_of(run, evaluation)
    shared = MODALITIES[TASKS[task].modality]
    owner = task if TASKS[task].has_part else shared.task if shared.has_part else None
    own = module_of(owner, "report").part(run, samples, limits) if owner else {}
    classified = evaluation if evaluation and "by_class" in evaluation else None
    return {
        "previews": {},
        **own,
        "part": f"{owner}/report.html" if owner else None,
        "model": model if (model := run.folder / "model").is_dir() else None,
        "is_current": run.model_is_of_this_training,
        "scores": _by_dataset(evaluation) if evaluation else {},
        "confusion": confusion_of(classified, limits.classes) if classified else None,
        "benchmarks": _benchmark_figures(run.figures("benchmarks.json")),
        "scored": _num_scored(evaluation) if evaluation else None,
        "confidence": evaluation and evaluation["confidence"],
        "samples": _samples(samples, limits),
        # The settings that the samples were made with.
        "sampling": {key: value for key, value in generation.items() if key not in _NOT_SAMPLING},
        "settings": changed_settings(run.settings),
        "checks": _checks(run, evaluation or {}, generation),
        "stages": _stages(run, results.stages),
        "machine": record.get("machine", {}),
        "software": record.get("software", {}),
        "lineage": lineage_of(run, limits.files),
        # Last, because they say which of the files above are damaged.
        "remarks": remarks(run, notes),
    }


def _checks(run: Run, *others: dict[str, Any]) -> list[dict[str, Any]]:
    """The comparisons with plain libraries: of the model and what it was made from, and of others.

    Each has `of`, `what`, the figures `here` and `plain` as they are shown, `library` and `holds`.
    """
    if not run.model_is_of_this_training:
        return []
    of_model = run.read_result(run.folder / "model" / PROOF, ("comparisons",)) or {}
    records = [
        *of_model.get("comparisons", ()),
        *(one for o in others for one in o.get("proof", ())),
    ]
    return [
        {**one, "here": short(one["here"]), "plain": short(one["plain"])}
        for one in records
        if one["skipped"] is None
    ]


def _by_dataset(scores: dict[str, Any]) -> dict[str | None, list[dict[str, Any]]]:
    """The figures of an evaluation: of all its datasets, under None, then of each."""
    parts = {None: scores, **scores.get("datasets", {})}
    return {dataset: _figures(part) for dataset, part in parts.items()}


def _benchmark_figures(
    record: dict[str, Any] | None,
) -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """The number of documents of each task, and its figures."""
    tasks = record["tasks"] if record else {}
    return {name: (task["documents"], _figures(task)) for name, task in tasks.items()}


def _figures(part: dict[str, Any]) -> list[dict[str, Any]]:
    more = part.get("higher_is_better", {})
    return [
        {
            "metric": metric,
            "base": part["base"][metric],
            "tuned": part["tuned"][metric],
            "difference": difference,
            "verdict": verdict(metric, difference, more.get(metric.partition(",")[0])),
        }
        for metric, difference in part["difference"].items()
    ]


def _num_scored(scores: dict[str, Any]) -> str | None:
    """The number of documents, pairs or images that were scored."""
    return next((f"{scores[unit]:,} {unit}" for unit in SCORED if unit in scores), None)


def _samples(samples: list[dict[str, Any]], limits: Limits) -> list[dict[str, Any]]:
    return [
        {name: cut(value, limits.characters) for name, value in row.items() if has_value(value)}
        for row in samples[: limits.samples]
    ]


def cut(value: Any, characters: int) -> Any:
    """A text without what is beyond so many characters; other values as they are."""
    if not isinstance(value, str) or len(value) <= characters:
        return value
    return f"{value[:characters]} … {len(value) - characters:,} more characters"


def inputs_of(run: Run) -> dict[str, str]:
    """The files that the run's model was made from, and their digests."""
    inputs: dict[str, str] = (run.read(f"model/{LINEAGE}") or {}).get("inputs", {})
    return inputs


def _stages(run: Run, stages: pd.DataFrame) -> list[dict[str, Any]]:
    """The stages of a run, and of what it was made from."""
    names = {Path(path).parent.name for path in inputs_of(run)} | {run.name}
    rows: list[dict[str, Any]] = stages[stages["name"].isin(names)].to_dict("records")
    return rows


def changed_settings(settings: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings of a run that aren't the defaults: key, value, default."""
    defaults = dict(flat(_DEFAULTS))
    return [
        (key, value, defaults.get(key))
        for key, value in flat(settings)
        if value != defaults.get(key)
    ]


def remarks(run: Run, notes: Iterable[str]) -> list[tuple[str, str]]:
    """Remarks about a run: pairs of kind (`error`, `warning` or `note`) and text."""
    alarming = ("skipped", "warning: ")
    from_notes = [
        ("warning" if note.startswith(alarming) else "note", note.removeprefix("warning: "))
        for note in notes
    ]
    from_overlaps = (("warning", line) for line in overlap_messages(run.figures("eval.json") or {}))
    return [
        *_training_remarks(run),
        *_figure_remarks(run),
        *from_notes,
        *from_overlaps,
        *_data_remarks(run),
    ]


def _figure_remarks(run: Run) -> Iterator[tuple[str, str]]:
    if not run.model_is_of_this_training:
        text = "the model is of an earlier training; run snakemake finetune"
        yield "warning", text
    for file in run.outdated:
        text = f"{file} was made before the last training and isn't shown; "
        yield "warning", f"{text}run snakemake {FIGURES[file]}"
    for error in run.damaged.values():
        yield "warning", f"not shown: {error}"


def _training_remarks(run: Run) -> Iterator[tuple[str, str]]:
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


def _data_remarks(run: Run) -> Iterator[tuple[str, str]]:
    lineage = run.read(f"model/{LINEAGE}") or {}
    for name, description in lineage.get("datasets", {}).items():
        if copies := sum(description.get("duplicates", {}).values()):
            yield "note", f"dataset {name}: {copies:,} duplicates left out"
        if copies := sum(description.get("near_copies", {}).values()):
            yield "note", f"dataset {name}: {copies:,} near copies left out"
    inputs = lineage.get("inputs", {})
    stores = tuple(f"{one.prepared}/" for one in MODALITIES.values() if one.has_tokens)
    for path in inputs:
        if path.startswith(stores):
            manifest = run.read_recorded(path.removeprefix("results/"), inputs[path])
            yield from _store_remarks(Path(path).parent.name, manifest)


def _store_remarks(name: str, manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for split, facts in manifest.get("splits", {}).items():
        for key, fate in _LOST.items():
            if count := facts.get(key):
                what = TASKS[manifest["task"]].scored
                yield "warning", f"tokens {name}: {count:,} {what} of {split} {fate}"
