"""Base and tuned on the same held-out rows."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from moray.corpus.dataset import read_documents
from moray.errors import UserError
from moray.evaluate.execution import batches_of
from moray.evaluate.likelihood import figures, score, select_documents
from moray.model.load import load_model
from moray.stages.evaluate import evaluate
from moray.tasks.language.rows import Segment, StoredSplit, is_trained

CFG = {"max_documents": None, "bootstrap_samples": 30, "confidence": 0.9, "precision": "auto"}
EXECUTION: dict[str, Any] = {
    "evaluate": {"num_workers": 1, "batch_size": 4},
    "launcher": "torchrun",
    "ray": {},
    "stall_timeout": 600.0,
}


def run(base: Path, tuned: Path, store: Path, output: Path, **cfg: Any) -> dict[str, Any]:
    evaluate("tuned", base, tuned, [store], output, CFG | cfg, EXECUTION)
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
    everything = select_documents(split, None)
    for name, folder in (("base", model_folder), ("tuned", tuned_folder)):
        scores = score(load_model(folder), split, everything, batches_of(everything.rows, 16))
        expected = figures(scores.sums().sum(0))
        got = {figure: interval["value"] for figure, interval in result[name].items()}
        assert got == pytest.approx(expected)
    assert result["difference"]["bits_per_byte"]["high"] < 0
    assert result["difference"]["accuracy"]["low"] > 0


def test_a_model_does_not_differ_from_itself(
    tmp_path: Path, tuned_folder: Path, store: Path
) -> None:
    result = run(tuned_folder, tuned_folder, store, tmp_path / "eval.json")
    assert all(set(one.values()) == {0.0} for one in result["difference"].values())


@pytest.mark.parametrize("count", [1, 3, 10_000])
def test_no_more_documents_are_scored_than_asked_for(
    tmp_path: Path, tuned_folder: Path, store: Path, count: int
) -> None:
    split = StoredSplit(store, "test")
    segments = split.segments
    result = run(tuned_folder, tuned_folder, store, tmp_path / "eval.json", max_documents=count)
    assert result["documents"] == min(count, len(set(segments[:, Segment.DOCUMENT].tolist())))
    chosen = select_documents(split, count)
    assert result["rows"] == len(chosen.rows)
    assert result["bytes"] == chosen.segments[:, Segment.BYTES].sum()


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
    with pytest.raises(UserError, match="can't load a causal language model"):
        run(tuned_folder, tmp_path / "missing", store, tmp_path / "eval.json")
    assert not (tmp_path / "eval.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "ray"])
@pytest.mark.parametrize("dataset", ["prompt-completion"], indirect=True)
def test_as_many_processes_score_as_the_config_says_and_scores_stay_the_same(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    store: Path,
    launcher: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The workflow passes relative paths, and a Ray worker's current directory is another one.
    monkeypatch.chdir(tmp_path)
    base, tuned, tokens = (
        Path(os.path.relpath(folder)) for folder in (model_folder, tuned_folder, store)
    )
    alone = run(base, tuned, tokens, tmp_path / "alone.json")
    execution = EXECUTION | {"launcher": launcher}
    execution["evaluate"] = EXECUTION["evaluate"] | {"num_workers": 2}
    output = Path("together.json")
    evaluate("tuned", base, tuned, [tokens], output, CFG, execution)
    together = json.loads(output.read_text())
    for name in ("base", "tuned", "difference"):
        for figure, interval in alone[name].items():
            assert together[name][figure] == pytest.approx(interval, abs=1e-6)
    if launcher == "torchrun":
        # Both report what they load.
        log = capfd.readouterr().err
        assert all(f"[worker {rank}]" in log for rank in (0, 1))
    # What the workers shared is gone.
    assert {path.name for path in tmp_path.iterdir()} == {"alone.json", "together.json"}


@pytest.mark.long
@pytest.mark.parametrize("dataset", ["text"], indirect=True)
def test_a_fault_of_a_worker_costs_one_line(
    tmp_path: Path, model_folder: Path, store: Path
) -> None:
    execution = EXECUTION | {"evaluate": {"num_workers": 2, "batch_size": 4}}
    missing, output = tmp_path / "missing", tmp_path / "eval.json"
    with pytest.raises(UserError, match="can't load a causal language model"):
        evaluate("tuned", model_folder, missing, [store], output, CFG, execution)


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


@pytest.mark.parametrize(("precision", "rounding"), [("fp32", 1e-6), ("bf16", 0.05)])
def test_models_compute_in_the_precision_that_the_config_names(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    store: Path,
    precision: str,
    rounding: Any,
) -> None:
    """On a CPU, `auto` is fp32."""
    auto = run(model_folder, tuned_folder, store, tmp_path / "auto.json")["tuned"]["loss"]["value"]
    result = run(model_folder, tuned_folder, store, tmp_path / "x.json", precision=precision)
    named = result["tuned"]["loss"]["value"]
    assert (named == auto) == (precision == "fp32")
    assert named == pytest.approx(auto, rel=rounding)
