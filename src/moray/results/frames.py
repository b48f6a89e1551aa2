"""Data frames of all runs, read from the files of the workflow."""

import csv
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from moray.errors import UserError
from moray.results.rows import flat, history_rows, progress, run_row, sample_rows, score_rows
from moray.results.run import Run, find_runs

# Columns of a benchmark file of Snakemake, and what they are called here.
_MEASURED = {"s": "seconds", "cpu_time": "cpu_seconds", "max_rss": "max_rss"}


@dataclass(frozen=True)
class Results:
    """What all runs have left, a data frame for each kind of result.

    A figure that a run doesn't have is missing there (NaN or None).

    Attributes:
        runs: a row for each run: `status` (`finished`, `unfinished` or `failed`), `error`, `task`,
            `base` (name of a model or run), `datasets`, `parameters`, `steps`, `num_steps`,
            `seconds` (of the last start of the training), `throughput` (mean, in `unit` per second)
            and other facts of `train.json`.
        settings: a row for each run, a column for each key that its weights depend on, such as
            `train.learning_rate`.
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
        results: the workflow's folder of results.
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
    found = find_runs(results, Path(state or results / "state"), runs)
    history = {run.name: list(history_rows(run)) for run in found}
    return Results(
        runs=_frame({run.name: [run_row(run) | progress(history[run.name])] for run in found}),
        settings=_frame({run.name: [dict(flat(run.settings))] for run in found}),
        history=_frame(history, "kind", "step", "num_steps"),
        scores=_frame(
            {run.name: score_rows(run) for run in found},
            *("dataset", "model", "metric", "value", "low", "high"),
        ),
        samples=_frame({run.name: sample_rows(run) for run in found}, "number"),
        stages=_stages(results / "benchmarks"),
        files={run.name: run for run in found},
    )


def _frame(rows: Mapping[str, Iterable[Mapping[str, Any]]], *columns: str) -> pd.DataFrame:
    """The rows of all runs; the columns are there even if no run has a row."""
    whole = [{"run": run, **row} for run, some in rows.items() for row in some]
    others = {name: None for row in whole for name in row}
    return pd.DataFrame(whole, columns=list(dict.fromkeys(["run", *columns, *others])))


def _stages(benchmarks: Path) -> pd.DataFrame:
    """What Snakemake measured of each stage."""
    measured = [
        {"stage": file.parent.name, "name": file.stem, **row}
        for file in sorted(benchmarks.glob("*/*.tsv"))
        for row in csv.DictReader(file.read_text().splitlines(), delimiter="\t")
    ]
    names = {"stage": "stage", "name": "name"} | _MEASURED
    frame = pd.DataFrame(measured, columns=list(names)).rename(columns=names)
    # Snakemake writes NA for a stage that ended before its first look.
    numbers = list(_MEASURED.values())
    frame[numbers] = frame[numbers].apply(pd.to_numeric, errors="coerce")
    return frame
