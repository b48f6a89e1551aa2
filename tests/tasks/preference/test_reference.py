"""The log-probabilities of answers under the start of a run."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import execution_of
from resumed import check_batches_resumption
from small_model import EXECUTION, HELD, make_reference, write_stores
from transformers import AutoModelForCausalLM

from moray.config.schema.losses import Preference
from moray.config.schema.sections import Data
from moray.errors import UserError
from moray.provenance.manifest import damaged_files, read_manifest
from moray.rows.store import StoredRows
from moray.stages.evaluate import evaluate
from moray.tasks.language.proofs.plain import log_probabilities
from moray.tasks.language.rows import StoredSplit
from moray.tasks.preference.proofs import pairs_of
from moray.tasks.preference.reference import reference


def check_values(folder: Path, store: Path) -> None:
    """Hold each value against a plain forward pass of its answer alone."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    for name in ("train", "validation"):
        for row in StoredRows(store, name).rows[:6]:
            pairs = list(pairs_of(np.array([row])))
            with torch.no_grad():
                expected = [
                    [float(log_probabilities(model, *one).sum()) for one in pair] for pair in pairs
                ]
            np.testing.assert_allclose(row["reference"][: len(pairs)], expected, rtol=1e-5)
            assert not row["reference"][len(pairs) :].any()


def test_rows_are_those_of_the_tokens_with_the_log_probabilities_of_their_answers(
    preferences: Path,
) -> None:
    store, tokens = preferences / "reference", preferences / "pairs"
    manifest = read_manifest(store)
    assert damaged_files(store) == []
    assert manifest["task"] == "preference"
    assert manifest["block_size"] == read_manifest(tokens)["block_size"]
    for name in ("train", "validation"):
        made, given = StoredRows(store, name), StoredSplit(tokens, name)
        assert made.windows == given.windows
        for field in ("tokens", "flags"):
            np.testing.assert_array_equal(made.rows[field], given.rows[field])
    assert StoredRows(store, "train").rows["reference"].shape[1] > 1
    check_values(preferences, store)


def test_without_packing_no_answer_sees_another(
    tmp_path: Path, preferences: Path, small: Path
) -> None:
    for name in ("model", "dataset"):
        (tmp_path / name).symlink_to(preferences / name)
    write_stores(tmp_path, small / "model", Data(block_size=128, packing=False))
    assert StoredRows(tmp_path / "reference", "train").rows["reference"].shape[1:] == (1, 2)
    check_values(tmp_path, tmp_path / "reference")


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("torchrun", marks=pytest.mark.long),
        # Evaluation starts workers the same way, and is tested with Ray.
        pytest.param("ray", marks=pytest.mark.release),
    ],
)
def test_the_number_of_workers_changes_nothing(
    launcher: str, tmp_path: Path, preferences: Path
) -> None:
    two = {"evaluate": {"num_workers": 2, "batch_size": 4}, "launcher": launcher}
    make_reference(preferences, preferences / "model", tmp_path / "out", **two)
    for name in ("train", "validation"):
        alone, together = (
            StoredRows(store, name).rows for store in (preferences / "reference", tmp_path / "out")
        )
        np.testing.assert_allclose(together["reference"], alone["reference"], rtol=1e-6)
        np.testing.assert_array_equal(together["tokens"], alone["tokens"])
    # What the workers shared is gone.
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["reference", "evaluation"])
def test_what_is_interrupted_continues_and_ends_with_the_same_bytes(
    kind: str, tmp_path: Path, preferences: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = preferences / "model"
    cfg = {
        "max_documents": None,
        "bootstrap_samples": 20,
        "confidence": 0.9,
        "precision": "fp32",
        "preference": Preference().model_dump(),
    }

    def stage(folder: Path) -> None:
        if kind == "reference":
            make_reference(preferences, model, folder / "out")
        else:
            output, execution = folder / "eval.json", execution_of("evaluate", batch_size=1)
            evaluate("name", model, model, [preferences / "pairs"], output, cfg, execution)

    check_batches_resumption(stage, tmp_path, capfd)


def test_a_fault_leaves_nothing_behind(tmp_path: Path, preferences: Path) -> None:
    missing: Any = tmp_path / "missing"
    with pytest.raises(UserError, match="can't load a causal language model"):
        make_reference(preferences, missing, tmp_path / "out")
    copy = Path(shutil.copytree(preferences / "pairs", tmp_path / "pairs"))
    (copy / "train.rows").write_bytes(b"")
    with pytest.raises(UserError, match=r"train\.rows: got 0 bytes"):
        reference("name", preferences / "model", copy, tmp_path / "out", HELD, EXECUTION)
    assert not (tmp_path / "out").exists()
