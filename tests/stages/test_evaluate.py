"""Base and tuned on the same held-out rows, and on the same held-out pairs."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import execution_of, job_maker
from resumed import check_batches_resumption, interrupted_after
from transformers import AutoModelForCausalLM

from moray.config.schema.base import result_keys
from moray.config.schema.losses import Preference
from moray.corpus.dataset import content, read_documents
from moray.corpus.documents import write_dataset
from moray.errors import UserError
from moray.evaluate.batches import Arrays, Batch, BatchWriter
from moray.evaluate.worker import batches_of
from moray.model.load import load_model
from moray.provenance.manifest import write_manifest
from moray.stages.evaluate import evaluate
from moray.storage.interface import folder_of, path_of
from moray.tasks.language.likelihood import figures, score, select_documents
from moray.tasks.language.proofs.plain import log_probabilities
from moray.tasks.language.rows import Segment, StoredSplit, is_trained
from moray.tasks.preference.proofs import loss_of, pairs_of
from moray.train.checkpoint.load import trained_model
from moray.train.loop import train
from moray.workers.entry import Worker

CFG = {"max_documents": None, "bootstrap_samples": 30, "confidence": 0.9, "precision": "auto"}
MIXED = CFG | {"datasets": ["one", "two"]}
EXECUTION = execution_of("evaluate")


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


def test_documents_of_the_test_split_that_were_trained_on_are_counted_and_named(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    store: Path,
    dataset: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    held_out = [row for rows in read_documents(dataset / "test.parquet") for row in rows]
    chosen = [row for row in held_out if len(content(row)) % 3]
    kind = json.loads((dataset / "dataset.json").read_text())["format"]
    rows = [("train", row) for row in chosen]
    write_dataset(tmp_path / "other", iter(rows), kind, {})
    files = [dataset / "test.parquet", tmp_path / "other/train.parquet"]
    cfg = CFG | {"trained_by": {"other": ["base2"]}}

    def scores(*compared: Path) -> dict[str, Any]:
        output = tmp_path / "eval.json"
        evaluate("run", model_folder, tuned_folder, [store], output, cfg, EXECUTION, compared)
        result: dict[str, Any] = json.loads(output.read_text())
        return result

    found = scores(*files)
    kept = {content(row) for row in chosen}
    trained = sum(content(row) in kept for row in held_out)
    assert 0 < trained < len(held_out)
    (overlap,) = found["overlaps"]
    assert (overlap["trained"], overlap["documents"]) == (trained, len(held_out))
    line = (
        f"{trained} of {len(held_out)} test documents of {dataset.name} were trained on, in other"
    )
    assert f"run: {line} (run base2)\n" in capfd.readouterr().err
    assert {str(file) for file in files} < found["inputs"].keys()
    # What doesn't overlap is as if it hadn't been compared.
    alone = scores()
    assert scores(dataset / "test.parquet", dataset / "train.parquet") == alone
    assert "overlaps" not in alone
    assert "trained on" not in capfd.readouterr().err


def test_no_more_documents_are_scored_than_asked_for(
    tmp_path: Path, tuned_folder: Path, store: Path
) -> None:
    split = StoredSplit(store, "test")
    whole = len(set(split.segments[:, Segment.DOCUMENT].tolist()))
    for count in (1, 3, 10_000):
        result = run(tuned_folder, tuned_folder, store, tmp_path / "eval.json", max_documents=count)
        assert result["documents"] == min(count, whole)
        chosen = select_documents(split, count)
        assert result["rows"] == len(chosen.rows)
        assert result["bytes"] == chosen.segments[:, Segment.BYTES].sum()


def test_a_damaged_store_or_a_missing_model_leaves_nothing_behind(
    tmp_path: Path, tuned_folder: Path, store: Path
) -> None:
    damaged, output = Path(shutil.copytree(store, tmp_path / "store")), tmp_path / "eval.json"
    (damaged / "test.rows").write_bytes(b"")
    with pytest.raises(UserError, match=r"test\.rows: got 0 bytes"):
        run(tuned_folder, tuned_folder, damaged, output)
    with pytest.raises(UserError, match="can't load a causal language model"):
        run(tuned_folder, tmp_path / "missing", store, output)
    assert not output.exists()


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("ray", marks=pytest.mark.release)])
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
    execution = execution_of("evaluate", num_workers=2, launcher=launcher)
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
    execution = execution_of("evaluate", num_workers=2)
    missing, output = tmp_path / "missing", tmp_path / "eval.json"
    with pytest.raises(UserError, match="can't load a causal language model"):
        evaluate("tuned", model_folder, missing, [store], output, CFG, execution)


@pytest.mark.parametrize("dataset", ["prompt-completion"], indirect=True)
def test_an_interrupted_evaluation_continues_and_ends_with_the_same_bytes(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    store: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def stage(folder: Path) -> None:
        output, execution = folder / "eval.json", execution_of("evaluate", batch_size=1)
        evaluate("tuned", model_folder, tuned_folder, [store, store], output, MIXED, execution)

    check_batches_resumption(stage, tmp_path, capfd)


@pytest.mark.parametrize("dataset", ["text"], indirect=True)
def test_batches_of_other_inputs_settings_or_code_do_not_count(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    store: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "eval.json"
    other_store = Path(shutil.copytree(store, tmp_path / "store"))
    manifest = json.loads((store / "manifest.json").read_text())
    (other_store / "manifest.json").write_text(json.dumps(manifest | {"other": True}))

    def stage(
        tuned: Path = tuned_folder,
        store: Path = store,
        confidence: float = 0.9,
        size: int = 2,
        code: str = "",
    ) -> None:
        cfg, execution = CFG | {"confidence": confidence}, execution_of("evaluate", 1, size)
        evaluate("tuned", model_folder, tuned, [store], output, cfg, execution, code=code)

    others: list[dict[str, Any]] = [
        {"tuned": model_folder},
        {"store": other_store},
        {"confidence": 0.8},
        {"size": 3},
        {"code": "evaluate language 2"},
    ]
    for other in others:
        with interrupted_after(2):
            stage()
        capfd.readouterr()
        with interrupted_after(1):
            stage(**other)
        assert "continues" not in capfd.readouterr().err
        # They are the only ones that are kept.
        stage(**other)
        assert "evaluate tuned: continues after 1 batch of" in capfd.readouterr().err
        assert {*tmp_path.iterdir()} == {output, other_store}


@pytest.mark.parametrize("dataset", ["text"], indirect=True)
def test_what_a_proof_refuses_is_computed_anew(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    store: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def doubled(self: BatchWriter, batch: Batch, arrays: Arrays) -> None:
        arrays["nll"][:] *= 2

    output = tmp_path / "eval.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchWriter, "add", doubled)
        with pytest.raises(UserError, match="differs from the plain library in loss of base"):
            run(model_folder, tuned_folder, store, output)
    run(model_folder, tuned_folder, store, output)
    assert "continues" not in capfd.readouterr().err
    assert [*tmp_path.iterdir()] == [output]


_KILLED = """
import json, os, signal, sys
from pathlib import Path
from moray.evaluate import batches
from moray.stages.evaluate import evaluate

folders, count, cfg, execution = json.loads(sys.argv[1])
add = batches.BatchWriter.add
batches._SECONDS_BETWEEN_FLUSHES = 0.0

def killing(self, batch, arrays):
    global count
    add(self, batch, arrays)
    count -= 1
    if not count:
        os.kill(os.getpid(), signal.SIGKILL)

batches.BatchWriter.add = killing
base, tuned, store, output = map(Path, folders)
evaluate("tuned", base, tuned, [store], output, cfg, execution)
"""


@pytest.mark.long
@pytest.mark.parametrize("dataset", ["prompt-completion"], indirect=True)
def test_other_workers_continue_after_a_kill(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    store: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "killed").mkdir()
    whole, output = tmp_path / "whole.json", tmp_path / "killed/eval.json"
    for count in (3, 4):
        folders = [str(folder) for folder in (model_folder, tuned_folder, store, output)]
        arguments = json.dumps([folders, count, CFG, execution_of("evaluate", batch_size=1)])
        # Other threads round differently.
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", _KILLED, arguments], env=env, check=False)
        assert done.returncode == -signal.SIGKILL
    assert not output.exists()
    capfd.readouterr()
    two = execution_of("evaluate", num_workers=2, batch_size=1)
    evaluate("tuned", model_folder, tuned_folder, [store], output, CFG, two)
    assert "evaluate tuned: continues after 7 batches of" in capfd.readouterr().err
    assert [*output.parent.iterdir()] == [output]
    evaluate("tuned", model_folder, tuned_folder, [store], whole, CFG, two)
    assert output.read_bytes() == whole.read_bytes()


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


FIGURES = {
    "loss",
    "reward_margin",
    "reward_accuracy",
    "chosen_loss",
    "chosen_bits_per_byte",
    "chosen_accuracy",
}


@pytest.fixture(scope="module")
def tuned(preferences: Path, tmp_path_factory: pytest.TempPathFactory, alone: Worker) -> Path:
    """The model of 20 steps on the pairs."""
    folder = tmp_path_factory.mktemp("tuned")
    make = job_maker(preferences, folder, "reference", preference=result_keys(Preference()))
    job = make(max_steps=20, learning_rate=3e-3)
    train(job, alone)
    last = path_of(folder_of(job.work), 20)
    trained_model(job.start, last, None).save_pretrained(folder / "model")
    write_manifest(folder / "model")
    return folder / "model"


def run_pairs(preferences: Path, tuned: Path, output: Path, loss: Preference, **cfg: Any) -> Any:
    keys = CFG | {"precision": "fp32"} | {"preference": result_keys(loss)} | cfg
    base, pairs = preferences / "model", preferences / "pairs"
    evaluate("name", base, tuned, [pairs], output, keys, EXECUTION)
    return json.loads(output.read_text())


@pytest.mark.parametrize(
    "settings",
    [
        Preference(beta=0.5, label_smoothing=0.1),
        Preference(loss="ipo", beta=0.3),
        Preference(loss="simpo", beta=2.0),
    ],
    ids=["dpo", "ipo", "simpo"],
)
def test_figures_are_those_of_an_independent_computation(
    settings: Preference, preferences: Path, tuned: Path, tmp_path: Path
) -> None:
    result = run_pairs(preferences, tuned, tmp_path / "eval.json", settings)
    split = StoredSplit(preferences / "pairs", "test")
    pairs = list(pairs_of(split.rows))
    models = [AutoModelForCausalLM.from_pretrained(p) for p in (preferences / "model", tuned)]
    with torch.no_grad():
        before, after = (
            [[log_probabilities(model, *one).sum() for one in pair] for pair in pairs]
            for model in models
        )
    margins, losses = [], []
    for pair, old, new in zip(pairs, before, after, strict=True):
        lengths = [sum(mask) for _, mask in pair]
        if settings.has_reference:
            changes = [a - b for a, b in zip(new, old, strict=True)]
        else:
            old, changes = [torch.zeros(())] * 2, [a / b for a, b in zip(new, lengths, strict=True)]
        margins.append(settings.beta * float(changes[0] - changes[1]))
        losses.append(float(loss_of(new, old, lengths, settings)))
    chosen = [float(-new[0]) for new in after]
    tokens = sum(sum(mask) for (_, mask), _ in pairs)
    size = int(split.segments[::2, 3].sum())
    values = {name: interval["value"] for name, interval in result["tuned"].items()}
    assert values.keys() == FIGURES
    assert values["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert values["reward_margin"] == pytest.approx(np.mean(margins), rel=1e-3, abs=1e-5)
    assert values["reward_accuracy"] == np.mean([margin > 0 for margin in margins])
    assert values["chosen_loss"] == pytest.approx(sum(chosen) / tokens, rel=1e-5)
    bits = sum(chosen) / math.log(2) / size
    assert values["chosen_bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert (result["pairs"], result["resampled"]) == (len(pairs), "pairs")
    for interval in result["tuned"].values():
        assert interval["low"] <= interval["value"] <= interval["high"]


def test_of_the_base_margins_are_zero_and_ties_count_half(
    preferences: Path, tuned: Path, tmp_path: Path
) -> None:
    base = run_pairs(preferences, tuned, tmp_path / "eval.json", Preference())["base"]
    assert set(base["reward_margin"].values()) == {0.0}
    assert set(base["reward_accuracy"].values()) == {0.5}
    assert base["loss"]["value"] == pytest.approx(math.log(2))


def test_no_more_pairs_are_scored_than_asked_for(
    preferences: Path, tuned: Path, tmp_path: Path
) -> None:
    result = run_pairs(preferences, tuned, tmp_path / "eval.json", Preference(), max_documents=3)
    assert result["pairs"] == 3
