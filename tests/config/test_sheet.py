"""Runs in a table: each is the run that `runs` of the config would have."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from small_config import config_with

from moray.config.load import load_experiment
from moray.config.schema.experiment import Experiment
from moray.errors import ConfigError

HEAD = "run\tmodel\tdataset\ttrain.learning_rate\ttrain.max_steps\tadapter"
ROWS = (
    "a\ttiny\tmodules\t1e-3\t\t",
    "b.1\t{run: a}\t{modules: 2, functions: 1}\t0.002\t7\t{rank: 4}",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(**values: Any) -> dict[str, Any]:
    return config_with({"runs_from": "runs.tsv", **values})


def written(
    *lines: str,
    file: str = "runs.tsv",
    encoding: str = "utf-8",
    values: Mapping[str, Any] = MappingProxyType({}),
) -> Experiment:
    Path(file).write_text("\n".join(lines) + "\n", encoding=encoding)
    return load_experiment(config(**{"runs_from": file, **values}))


def faults(*lines: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        written(*lines)
    return str(error.value).splitlines()


@pytest.mark.parametrize(("file", "encoding"), [("runs.tsv", "utf-8"), ("r.csv", "utf-8-sig")])
def test_runs_are_those_that_the_config_would_have(folder: Path, file: str, encoding: str) -> None:
    lines: tuple[str, ...] = (HEAD, *ROWS)
    if file.endswith("csv"):
        lines = tuple(
            line.replace("{modules: 2, functions: 1}", '"{modules: 2, functions: 1}"').replace(
                "\t", ","
            )
            for line in lines
        )
    found = written(*lines, file=file, encoding=encoding)
    first = {"model": "tiny", "dataset": "modules", "train": {"learning_rate": 1e-3}}
    whole = config_with({"runs.a": first})
    whole["runs"]["b.1"] = {
        "model": {"run": "a"},
        "dataset": {"modules": 2, "functions": 1},
        "train": {"learning_rate": 0.002, "max_steps": 7},
        "adapter": {"rank": 4},
    }
    assert found.runs == load_experiment(whole).runs
    assert {"a", "b.1", "base", "tuned"} == found.runs.keys()


def test_the_config_overrides_and_removes_runs_of_the_table(folder: Path) -> None:
    changed = {"runs.a": {"train": {"learning_rate": 5e-4}}}
    found = written(HEAD, *ROWS, values=changed)
    assert found.runs["a"].train.learning_rate == 5e-4
    assert found.runs["a"].model == "tiny"
    one = written(HEAD, ROWS[0], values={"runs.a": None})
    assert "a" not in one.runs


def test_a_row_can_be_a_sweep(folder: Path) -> None:
    found = written("run\tmodel\tdataset\tseeds", "a\ttiny\tmodules\t2")
    assert {"a-seed=0", "a-seed=1"} <= found.runs.keys()


def test_faults_are_where_they_were_written(folder: Path) -> None:
    assert faults(HEAD.replace("max_steps", "max_stps"), *ROWS) == [
        "runs.tsv, line 1, train.max_stps: unknown key; did you mean max_steps?"
    ]
    (line,) = faults(HEAD, ROWS[0], ROWS[1].replace("0.002", "-1"))
    assert line.startswith("runs.tsv, line 3, train.learning_rate: got -1, expected")
    (line,) = faults(HEAD, ROWS[0].replace("tiny", "tyni"))
    assert line.startswith("runs.tsv, line 2, model: ")


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ((HEAD, ROWS[0], ROWS[0]), "runs.tsv, line 3: a is in line 2 too; rename one of them"),
        ((HEAD, ROWS[0][1:]), "runs.tsv, line 2: has no run; name each run in the column run"),
        (("name", "a"), "runs.tsv, line 2: has no run; name each run in the column run"),
        (
            (HEAD, "a\ttiny"),
            "runs.tsv, line 2: has fewer values than line 1 has columns; correct it",
        ),
        (
            (HEAD, ROWS[0] + "\t1"),
            "runs.tsv, line 2: has more values than line 1 has columns; correct it",
        ),
        (
            (HEAD, ROWS[1].replace("}", "")),
            "runs.tsv, line 2, model: {run: a isn't YAML; correct it",
        ),
    ],
)
def test_a_table_that_says_no_runs_costs_one_line(
    folder: Path, lines: tuple[str, ...], line: str
) -> None:
    assert faults(*lines) == [line]


def test_no_table_costs_one_line(folder: Path) -> None:
    for value, problem in (
        (
            "runs.tsv",
            "there is no file runs.tsv; check the path; it is relative to the working directory",
        ),
        ("runs.xlsx", "got runs.xlsx, expected a .tsv or .csv file; name one, or remove it"),
    ):
        with pytest.raises(ConfigError) as error:
            load_experiment(config(runs_from=value))
        assert str(error.value) == f"runs_from: {problem}"
