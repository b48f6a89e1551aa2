"""Datasets without near copies of their rows."""

import json
from pathlib import Path

import pytest
from repeated import split_of_rows, write_repeated
from small_config import experiment_with

from moray.errors import ConfigError
from moray.stages import preflight as checks


def test_with_near_each_text_is_there_once_but_where_both_are_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The share of runs that a text and the same without its last word have in common is 0.99."""
    write_repeated(tmp_path)
    exact, _ = split_of_rows(tmp_path, deduplicate="exact")
    near, described = split_of_rows(tmp_path, deduplicate="near")
    assert near["validation"] == exact["validation"]
    assert near["test"] == exact["test"]

    def beginning(row: str) -> str:
        return " ".join(row.split()[:99])

    held_out = {beginning(row) for split in ("validation", "test") for row in near[split]}
    expected, of_held_out, of_train = [], 0, 0
    seen = set[str]()
    for row in exact["train"]:
        if beginning(row) in held_out:
            of_held_out += 1
        elif beginning(row) in seen:
            of_train += 1
        else:
            expected.append(row)
        seen.add(beginning(row))
    assert near["train"] == expected
    assert described["near_copies"] == {"train": of_train, "held_out": of_held_out}
    assert of_train > 20 < of_held_out
    said = capsys.readouterr().err
    assert (
        f", {of_train + of_held_out:,} near copies dropped, {of_held_out:,} of them of rows that "
        "are held out" in said
    )
    proof = json.loads((tmp_path / "near/proof.json").read_text())
    assert all(one["holds"] for one in proof["comparisons"])


def test_a_missing_library_is_known_before_the_first_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"text": "a"}')
    section = {"source": "files", "path": "x.jsonl", "deduplicate": "near"}
    experiment = experiment_with({"datasets.modules": section})
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^datasets\.modules: needs packages .*: rensa; pip install rensa$"
    ):
        checks.preflight(experiment, ["base"])
