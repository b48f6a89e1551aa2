"""Base and tuned on the same held-out rows."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from moray.corpus.dataset import read_documents
from moray.errors import UserError
from moray.evaluate.bootstrap import figures
from moray.evaluate.likelihood import score
from moray.model.load import load_model
from moray.stages.evaluate import evaluate
from moray.tokens.rows import is_trained
from moray.tokens.store import StoredSplit

CFG = {"max_rows": None, "bootstrap_samples": 30, "confidence": 0.9}


def run(base: Path, tuned: Path, store: Path, output: Path, **cfg: Any) -> dict[str, Any]:
    evaluate(base, tuned, store, output, CFG | cfg, batch_size=4)
    result: dict[str, Any] = json.loads(output.read_text())
    return result


def test_both_models_are_scored_on_the_whole_test_split(
    tmp_path: Path, model_folder: Path, tuned_folder: Path, store: Path, dataset: Path
) -> None:
    result = run(model_folder, tuned_folder, store, tmp_path / "eval.json")
    split = StoredSplit(store, "test")
    rows = [row for batch in read_documents(dataset / "test.parquet") for row in batch]
    size = sum(len(row.get("text", row.get("completion", "")).encode()) for row in rows)
    assert result["rows"] == len(split)
    assert result["documents"] == len(rows)
    assert result["tokens"] == is_trained(split.rows).sum()
    assert result["bytes"] == size
    assert result["confidence"] == 0.9
    for name, folder in (("base", model_folder), ("tuned", tuned_folder)):
        expected = figures(score(load_model(folder), split, len(split), batch_size=16))
        got = {figure: interval["value"] for figure, interval in result[name].items()}
        assert got == pytest.approx(expected)
    assert result["difference"]["bits_per_byte"]["high"] < 0
    assert result["difference"]["accuracy"]["low"] > 0


def test_a_model_does_not_differ_from_itself(
    tmp_path: Path, tuned_folder: Path, store: Path
) -> None:
    result = run(tuned_folder, tuned_folder, store, tmp_path / "eval.json")
    assert all(set(one.values()) == {0.0} for one in result["difference"].values())


@pytest.mark.parametrize("rows", [1, 3, 10_000])
def test_no_more_rows_are_scored_than_asked_for(
    tmp_path: Path, tuned_folder: Path, store: Path, rows: int
) -> None:
    split = StoredSplit(store, "test")
    result = run(tuned_folder, tuned_folder, store, tmp_path / "eval.json", max_rows=rows)
    assert result["rows"] == min(rows, len(split))
    assert result["tokens"] == is_trained(split.rows[:rows]).sum()


def test_a_damaged_store_leaves_nothing_behind(
    tmp_path: Path, tuned_folder: Path, store: Path
) -> None:
    copy = Path(shutil.copytree(store, tmp_path / "store"))
    (copy / "test.rows").write_bytes(b"")
    with pytest.raises(UserError, match=r"test\.rows: got 0 bytes"):
        run(tuned_folder, tuned_folder, copy, tmp_path / "eval.json")
    assert not (tmp_path / "eval.json").exists()


def test_a_missing_model_leaves_nothing_behind(
    tmp_path: Path, tuned_folder: Path, store: Path
) -> None:
    with pytest.raises(UserError, match="got no causal language model"):
        run(tuned_folder, tmp_path / "missing", store, tmp_path / "eval.json")
    assert not (tmp_path / "eval.json").exists()


def test_intervals_follow_confidence_and_resamplings(
    tmp_path: Path, model_folder: Path, tuned_folder: Path, store: Path
) -> None:
    def interval(**cfg: Any) -> tuple[float, float]:
        result = run(model_folder, tuned_folder, store, tmp_path / "eval.json", **cfg)
        loss = result["tuned"]["loss"]
        return loss["low"], loss["high"]

    narrow, wide = interval(confidence=0.5), interval(confidence=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert interval(bootstrap_samples=20) != interval(bootstrap_samples=21)
