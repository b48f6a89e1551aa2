"""Scores and samples of a classifier whose computation was interrupted."""

from pathlib import Path

import pytest
from classified import ENCODERS, opinions, prepare
from jobs import execution_of
from resumed import check_batches_resumption

from moray.stages.evaluate import evaluate
from moray.tasks.classification.classify import classify

CFG = {"max_documents": None, "bootstrap_samples": 20, "confidence": 0.9, "precision": "fp32"}
SAMPLES = {"num_samples": 10, "precision": "fp32"}


@pytest.mark.parametrize("stage", ["evaluate", "generate"])
def test_what_is_interrupted_continues_and_ends_with_the_same_bytes(
    stage: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, opinions(90), ENCODERS["BERT"]())
    model, store, execution = tmp_path / "model", tmp_path / "labelled", execution_of(stage, 1, 2)

    def run(folder: Path) -> None:
        if stage == "evaluate":
            evaluate("name", model, model, [store], folder / "eval.json", CFG, execution)
            return
        documents = tmp_path / "dataset/test.parquet"
        outputs = folder / "samples.jsonl", folder / "generation.json"
        classify("name", model, model, store, documents, *outputs, SAMPLES, execution)

    check_batches_resumption(run, tmp_path, capfd)
