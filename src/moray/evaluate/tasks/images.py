"""Image classifiers: accuracy on held-out images."""

from pathlib import Path
from typing import Any

import numpy as np

from moray.evaluate.accuracy import by_class, compare_answers
from moray.evaluate.classification import (
    Answers,
    ClassifyJob,
    chosen,
    classify_on_worker,
    in_order,
)
from moray.evaluate.execution import Execution, num_batches
from moray.provenance.manifest import read_manifest
from moray.rows.store import StoredRows


class ImagesEvaluation:
    """Scores of the images of one dataset, with a table of the classes."""

    figures = ("accuracy",)
    entry_point = staticmethod(classify_on_worker)

    def __init__(
        self, models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
    ) -> None:
        self._models, self._stores, self._cfg = models, stores, cfg
        (store,) = stores
        split = StoredRows(store, "test")
        numbers = chosen(split, cfg["max_documents"])
        self._labels = split.rows["label"][numbers].astype(np.int64)
        self._names = read_manifest(store)["label_names"]

    def batches(self, size: int) -> int:
        """See `Evaluation.batches`."""
        return num_batches(self._models, len(self._labels), size)

    def job(self, execution: Execution) -> ClassifyJob:
        """See `Evaluation.job`."""
        return ClassifyJob(self._models, self._stores, execution, self._cfg["max_documents"])

    def compared(self, results: list[dict[str, Answers]]) -> dict[str, Any]:
        """See `Evaluation.compared`."""
        base, tuned = (in_order([result[name] for result in results]) for name in ("base", "tuned"))
        samples, confidence = self._cfg["bootstrap_samples"], self._cfg["confidence"]
        return {
            "images": len(self._labels),
            "label_names": self._names,
            "confidence": confidence,
            **compare_answers(base, tuned, self._labels, samples, confidence),
            "by_class": {
                name: by_class(answers, self._labels, self._names)
                for name, answers in (("base", base), ("tuned", tuned))
            },
        }


evaluation = ImagesEvaluation
