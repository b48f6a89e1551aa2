"""Results are held against the config by what they say they were made of."""

import os
from pathlib import Path
from typing import Any

import pytest
from small_config import experiment_with

from moray.config import plan
from moray.config.recorded import other_model, other_rows, other_training
from moray.provenance.manifest import sha256_file, write_json

REST = (
    ", which Snakemake can't tell any more, because its records (.snakemake) are gone; add "
    "--forcerun {} to make it again, or take the changes back"
)


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a run, its model, and a dataset from a file."""
    monkeypatch.chdir(tmp_path)
    for folder in ("notes", "results/runs/tuned", "results/models/tiny", "results/datasets/notes"):
        Path(folder).mkdir(parents=True)
    Path("notes/a.txt").write_text("x")
    experiment = experiment_with({})
    train = plan.train_config(experiment, "tuned")
    stores = plan.store_folders(experiment, "tuned")
    record = {
        "adapter": train["adapter"],
        "train": train["train"],
        "code": "code 1",
        "inputs": {"start": "results/runs/base/model", "stores": {"functions": stores[0]}},
        "seconds": 3.5,
    }
    write_json(Path("results/runs/tuned/train.json"), record)
    facts = {"model": plan.model_config(experiment, "tiny"), "parameters": 5}
    write_json(Path("results/models/tiny/manifest.json"), facts)
    digests = {"notes/a.txt": sha256_file(Path("notes/a.txt"))}
    write_json(Path("results/datasets/notes/dataset.json"), {"files": digests, "splits": {}})


def said(values: dict[str, Any], code: str = "code 1") -> list[str]:
    experiment = experiment_with(values)
    errors = (
        other_rows(experiment, "notes"),
        other_model(experiment, "tiny"),
        other_training(experiment, "tuned", code),
    )
    return [str(error) for error in errors if error]


def test_what_was_made_of_the_same_is_left_alone() -> None:
    os.utime("notes/a.txt", (0, 0))
    assert said({"runs.tuned.train.micro_batch_size": 1}) == []


@pytest.mark.parametrize(
    ("values", "change"),
    [
        ({"runs.tuned.train.learning_rate": 0.5}, "train.learning_rate (0.001 → 0.5)"),
        ({"runs.tuned.model": "tiny"}, "inputs.start (results/runs/base/model → results/models/"),
        ({"runs.tuned.data.block_size": 32}, "inputs.stores.functions (results/tokens/functions-"),
        ({"runs.tuned.adapter": {"rank": 4}}, "adapter.rank (None → 4)"),
        ({"models.tiny.hidden_size": 64}, "model.hidden_size ("),
    ],
)
def test_other_settings_are_named(values: dict[str, Any], change: str) -> None:
    (line,) = said(values)
    assert change in line
    assert line.endswith(REST.format(line.partition(":")[0]))


def test_other_code_and_other_rows_are_named() -> None:
    Path("notes/a.txt").write_text("y")
    os.utime("notes/a.txt", (0, 0))
    rows, training = said({}, code="code 2")
    assert rows.startswith(
        "results/datasets/notes/dataset.json: was made of something else: files.notes/a.txt (2d711"
    )
    assert training == (
        "results/runs/tuned/train.json: was made of something else: code (code 1 → code 2)"
        + REST.format("results/runs/tuned/train.json")
    )


def test_a_file_more_or_less_is_named() -> None:
    Path("notes/a.txt").rename("notes/b.txt")
    (line,) = said({})
    assert "files.notes/a.txt (2d711642b726b044 → None), files.notes/b.txt (None → 2d711" in line


@pytest.mark.parametrize("damage", ["", "[]", "{"])
def test_what_is_damaged_or_gone_is_not_compared(damage: str) -> None:
    records = [*Path("results").glob("*/*/*.json")]
    assert len(records) == 3
    other = {"runs.tuned.train.learning_rate": 0.5, "models.tiny.hidden_size": 64}
    for record in records:
        record.write_text(damage)
    assert said(other) == []
    for record in records:
        record.unlink()
    assert said(other) == []
