"""The results of a workflow as pandas data frames, for notebooks and for the report."""

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from moray.config.schema.experiment import SMOKE_TEST_RUN
from moray.config.schema.sections import Data
from moray.config.tasks import MODALITIES, TASK_SECTIONS, TASKS, TaskName
from moray.errors import UserError
from moray.lines import parse_lines
from moray.provenance.lineage import LINEAGE, changed_inputs, is_sealed
from moray.provenance.manifest import MANIFEST, read_json, sha256_file
from moray.train.history import HISTORY

Status = Literal["finished", "unfinished", "failed"]

# Keys of train.json that hold settings.
_SETTINGS = ("adapter", *TASK_SECTIONS, "train")
_ERROR, _STOPPED = "error: ", "as requested"
# The models in eval.json; the third is tuned minus base.
MODELS = ("base", "tuned", "difference")
_SPEED = "_per_second"
# Keys that files of a run have, without which they are damaged.
_KEYS = {
    "train.json": ("train", "inputs", "exported_step", "resumed_from", "continued_from"),
    "eval.json": MODELS,
    "benchmarks.json": ("tasks",),
    f"model/{LINEAGE}": ("training", "inputs"),
}
# And their lines.
_LINE, _SAMPLE = ("step", "num_steps"), ("base", "tuned")
_SAMPLES = "samples.jsonl"
# Of `data`, what a manifest records.
_DATA = Data.model_fields.keys()
# Files with figures of a run's model, and what makes them again.
FIGURES = {"eval.json": "eval", "benchmarks.json": "benchmark", "generation.json": "generate"}
_FACTS = ("exported_step", "resumed_from", "seconds", "device", "num_workers", "precision")
# Columns of a benchmark file of Snakemake, and what they are called here.
_MEASURED = {"s": "seconds", "cpu_time": "cpu_seconds", "max_rss": "max_rss"}


@dataclass(frozen=True)
class Run:
    """The files of a run.

    Attributes:
        folder: its folder in `results/runs`.
        work: its newest folder in `ray.storage_path`, which may hold more than `folder` if the run
            isn't finished; None if there is none.
        damaged: what is wrong with each file that was read and is damaged.
    """

    name: str
    folder: Path
    work: Path | None
    log: Path
    damaged: dict[Path, UserError] = field(default_factory=dict)

    def read(self, file: str) -> dict[str, Any] | None:
        """The content of a JSON file in the run's folder; None if missing or damaged."""
        return self.read_result(self.folder / file, _KEYS.get(file, ()))

    def read_recorded(self, name: str, digest: str | None) -> dict[str, Any]:
        """The content of a JSON file, by its path below the results; empty if it is another now."""
        path = self.folder.parent.parent / name
        if digest is None or not path.is_file() or sha256_file(path) != digest:
            return {}
        return self.read_result(path) or {}

    def read_result(self, path: Path, keys: Sequence[str] = ()) -> dict[str, Any] | None:
        """The content of a JSON file with these keys; None if missing or damaged."""
        if not path.is_file():
            return None
        try:
            content = read_json(path, keys)
        except UserError as error:
            self.damaged[path] = error
            return None
        if "sha256" in content and not is_sealed(content):
            self.damaged[path] = UserError(
                str(path),
                "damaged: doesn't match its own SHA-256",
                "delete it and rerun to create it again",
            )
            return None
        return content

    def _lines(self, path: Path, keys: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """The lines of a JSONL file, up to the first damaged one."""
        try:
            yield from parse_lines(path, keys)
        except UserError as error:
            self.damaged[path] = error

    def figures(self, file: str) -> dict[str, Any] | None:
        """The content of a file of `FIGURES`; None if there is none, or of an earlier model."""
        return None if file in self.outdated else self.read(file)

    def samples(self) -> list[dict[str, Any]]:
        """The lines of `samples.jsonl`, unless they are of an earlier model."""
        outdated = "generation.json" in self.outdated
        return [] if outdated else [*self._lines(self.folder / _SAMPLES, _SAMPLE)]

    @cached_property
    def outdated(self) -> tuple[str, ...]:
        """The files of `FIGURES` that are of an earlier model, or of other rows.

        A model is itself an earlier one if the run has been trained again since.
        """
        contents = {file: self.read(file) for file in FIGURES}
        there = {file: content for file, content in contents.items() if content is not None}
        if not self.model_is_of_this_training:
            return tuple(there)
        return tuple(file for file in there if self._is_outdated(there[file].get("inputs", {})))

    @cached_property
    def model_is_of_this_training(self) -> bool:
        """Whether the model was exported after the run was last trained; true without one."""
        lineage = self.read(f"model/{LINEAGE}")
        if lineage is None:
            return True
        digests = {
            path: digest
            for path, digest in lineage["inputs"].items()
            if path.endswith(f"{self.name}/train.json")
        }
        return not self._is_outdated(digests)

    def _is_outdated(self, inputs: Mapping[str, str]) -> bool:
        """Whether one of a file's inputs has changed, or one that is the run's own is gone.

        Others are removed to save disk. Tables of rows are large, and made with what has changed.
        """
        results = self.folder.parent.parent
        small = {name: inputs[name] for name in inputs if not name.endswith(".parquet")}
        changed, missing = changed_inputs(small, results)
        return bool(changed) or any(self.folder in path.parents for path in missing)

    @cached_property
    def record(self) -> dict[str, Any] | None:
        """The content of `train.json`; None if the training isn't finished."""
        return self.read("train.json")

    @property
    def status(self) -> Status:
        """Whether the run was trained to its end."""
        if self.record is not None:
            return "finished"
        return "failed" if self.error else "unfinished"

    @property
    def error(self) -> str | None:
        """The last line of the log of an unfinished run, if it is an error."""
        if self.record is not None or not self.log.is_file():
            return None
        last = next(iter(self.log.read_text(errors="replace").splitlines()[::-1]), "")
        if not last.startswith(_ERROR) or _STOPPED in last:
            return None
        return last.removeprefix(_ERROR)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the result depends on, by section; those of no use are left out."""
        record = self.record
        if record is None and self.work is not None:
            record = (self.read_result(self.work / "identity.json") or {}).get("settings")
        return {key: record[key] for key in _SETTINGS if record and record.get(key)}

    @cached_property
    def data(self) -> dict[str, Any]:
        """The keys of `data` that the rows were made with, `auto` as it came out."""
        for store in ((self.record or {}).get("inputs") or {}).get("stores", {}).values():
            path = self.folder.parents[1].joinpath(*Path(store).parts[1:], MANIFEST)
            recipe = (self.read_result(path) or {}).get("recipe", {})
            # Those of a mixture differ in their format alone, which is no key of `data`.
            return {key: value for key, value in recipe.items() if key in _DATA}
        return {}

    @property
    def task(self) -> TaskName | None:
        """The task, which the sections of the settings tell, or where the rows are."""
        settings = self.settings
        with_own_section = (name for name, task in TASKS.items() if task.section_name in settings)
        stores = ((self.record or {}).get("inputs") or {}).get("stores", {}).values()
        by_rows = (
            facts.task
            for facts in MODALITIES.values()
            if any(Path(store).parent == Path(facts.prepared) for store in stores)
        )
        return next(chain(with_own_section, by_rows), "language") if settings else None

    def history(self) -> Iterator[dict[str, Any]]:
        """The lines of the history; of an unfinished run, as far as it got."""
        path = self.folder / HISTORY
        if self.record is None and self.work is not None:
            return self._lines(self.work / HISTORY, _LINE)
        return self._lines(path, _LINE)


def find_runs(results: Path, state: Path, names: Collection[str] | None) -> list[Run]:
    """The runs of these names in a folder of results; None for all that have a file, sorted."""
    if names is None:
        there = {path.name for path in [*(results / "runs").glob("*/"), *state.glob("[!.]*/")]}
        names = sorted(there - {SMOKE_TEST_RUN})
    logs = results.parent / "logs" / "finetune"
    return [
        Run(name, results / "runs" / name, _newest(state / name), logs / f"{name}.log")
        for name in names
    ]


def _newest(state: Path) -> Path | None:
    """The folder of the fingerprint that a run was trained with last."""
    histories = state.glob(f"*/{HISTORY}")
    newest = max(histories, key=lambda path: path.stat().st_mtime, default=None)
    return newest and newest.parent


@dataclass(frozen=True)
class Results:
    """The results of all runs, a data frame for each kind.

    A figure that a run doesn't have is missing there (NaN or None).

    Attributes:
        runs: a row for each run: `status` (`finished`, `unfinished` or `failed`), `error`,
            `outdated` (files with figures of an earlier model, which aren't read), `task`, `base`
            (name of a model or run), `datasets`, `parameters`, `steps`, `num_steps`, `seconds` (of
            the last start of the training), `throughput` (mean, in `unit` per second) and other
            facts of `train.json`.
        settings: a row for each run, a column for each key that its weights depend on, such as
            `model`, `dataset`, `data.block_size` and `train.learning_rate`.
        history: a row for each line of the histories: `run`, `kind` (`train`, `evaluation` or
            `note`), `step` and the other columns of `history.jsonl`.
        scores: a row for each figure of `eval.json` and `benchmarks.json` and each metric of
            `generation.json`: `run`, `dataset` (None for all of the run's together; the name of the
            task for benchmarks), `model` (`base`, `tuned` or `difference`), `metric`, `value`, and
            the bounds `low` and `high` of its interval.
        samples: a row for each line of `samples.jsonl`: `run`, `number` and the columns there.
        stages: a row for each stage that ran: `stage`, `name` (of the run, dataset, model or
            store), `seconds`, `cpu_seconds`, `max_rss` (of all its processes, in MB).
        files: the files of each run, by its name.
    """

    runs: pd.DataFrame
    settings: pd.DataFrame
    history: pd.DataFrame
    scores: pd.DataFrame
    samples: pd.DataFrame
    stages: pd.DataFrame
    files: dict[str, Run]


def load(
    results: str | Path = "results",
    state: str | Path | None = None,
    runs: Collection[str] | None = None,
) -> Results:
    """Read the results of a workflow, of unfinished runs too.

    Args:
        state: folder of the checkpoints, where unfinished runs have their history; by default,
            `state` in the folder of results, like `ray.storage_path`.
        runs: names of the runs to read; by default, all.

    Raises:
        UserError: if there is no folder of results.
    """
    results = Path(results)
    if not results.is_dir():
        raise UserError(
            str(results), "folder not found", "give the folder of results of a workflow"
        )
    all_runs = find_runs(results, Path(state or results / "state"), runs)
    history = {run.name: list(_history_rows(run)) for run in all_runs}
    facts = {run.name: _run_row(run) for run in all_runs}
    return Results(
        runs=_frame({name: [row | _progress(history[name])] for name, row in facts.items()}),
        settings=_frame({run.name: [_settings_row(run, facts[run.name])] for run in all_runs}),
        history=_frame(history, "kind", "step", "num_steps"),
        scores=_frame(
            {run.name: _score_rows(run) for run in all_runs},
            *("dataset", "model", "metric", "value", "low", "high"),
        ),
        samples=_frame({run.name: _sample_rows(run) for run in all_runs}, "number"),
        stages=_stages(results / "benchmarks"),
        files={run.name: run for run in all_runs},
    )


def _frame(rows: Mapping[str, Iterable[Mapping[str, Any]]], *columns: str) -> pd.DataFrame:
    """The rows of all runs; the columns are there even if no run has a row."""
    whole = [{"run": run, **row} for run, some in rows.items() for row in some]
    others = {name: None for row in whole for name in row}
    return pd.DataFrame(whole, columns=list(dict.fromkeys(["run", *columns, *others])))


def _stages(benchmarks: Path) -> pd.DataFrame:
    rows = [
        {"stage": file.parent.name, "name": file.stem, **row}
        for file in sorted(benchmarks.glob("*/*.tsv"))
        for row in csv.DictReader(file.read_text(errors="replace").splitlines(), delimiter="\t")
    ]
    names = {"stage": "stage", "name": "name"} | _MEASURED
    frame = pd.DataFrame(rows, columns=list(names)).rename(columns=names)
    # Snakemake writes NA for a stage that ended before its first look.
    numbers = list(_MEASURED.values())
    frame[numbers] = frame[numbers].apply(pd.to_numeric, errors="coerce")
    return frame


def _run_row(run: Run) -> dict[str, Any]:
    record = run.record or {}
    inputs = record.get("inputs", {})
    # The size of an earlier model needn't be this one's.
    current = run.model_is_of_this_training
    manifest = (run.read(f"model/{MANIFEST}") if current else None) or {}
    return {
        "status": run.status,
        "error": run.error,
        "outdated": ", ".join(run.outdated) or None,
        "task": run.task,
        "base": _name_of(Path(inputs["start"])) if inputs else None,
        "datasets": ", ".join(inputs.get("stores", ())) or None,
        "parameters": manifest.get("parameters"),
        **{fact: record.get(fact) for fact in _FACTS},
    }


def _settings_row(run: Run, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run by dotted key; `facts` are those of `_run_row`."""
    inputs = {"model": facts["base"], "dataset": facts["datasets"]} if facts["base"] else {}
    return inputs | dict(flat({**({"data": run.data} if run.data else {}), **run.settings}))


def _history_rows(run: Run) -> Iterator[dict[str, Any]]:
    """The lines of a run's history, and of which kind they are."""
    for line in run.history():
        kind = "note" if "note" in line else "evaluation" if "eval_loss" in line else "train"
        # Only the evaluations of mixtures are nested, and flattening takes longer than reading.
        yield {"kind": kind, **(dict(flat(line)) if "eval_losses" in line else line)}


def _progress(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How far a run got, and its mean speed over the logged steps, from its `_history_rows`."""
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


def _score_rows(run: Run) -> Iterator[dict[str, Any]]:
    """The figures of a run's continuations, of its evaluation and of its benchmarks."""
    scores = run.figures("eval.json") or {}
    parts = {None: scores, **scores.get("datasets", {})} if scores else {}
    tasks = (run.figures("benchmarks.json") or {}).get("tasks", {})
    metrics = (run.figures("generation.json") or {}).get("metrics", {})
    for metric, means in metrics.items():
        for model in MODELS:
            yield {"dataset": None, "model": model, "metric": metric, **means[model]}
    for dataset, part in [*parts.items(), *tasks.items()]:
        for model in MODELS:
            for metric, figure in part[model].items():
                yield {"dataset": dataset, "model": model, "metric": metric, **figure}


def _sample_rows(run: Run) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(run.samples()):
        yield {"number": number, **line}


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
