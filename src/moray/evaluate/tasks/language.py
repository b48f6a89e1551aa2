"""Language models: likelihood of held-out documents."""

from pathlib import Path
from typing import Any

from moray.evaluate.comparison import compare_scores
from moray.evaluate.execution import Execution, num_batches
from moray.evaluate.likelihood import Scores, joined, total
from moray.evaluate.scoring import ScoreJob, score_on_worker
from moray.evaluate.selection import select_documents
from moray.tasks.language.store import StoredSplit


class LanguageEvaluation:
    """Scores of all datasets together and, if there are several, of each."""

    figures = ("bits_per_byte", "accuracy")
    entry_point = staticmethod(score_on_worker)

    def __init__(
        self, models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
    ) -> None:
        self._models, self._stores, self._cfg = models, stores, cfg
        splits = [StoredSplit(store, "test") for store in stores]
        self._rows = [len(select_documents(split, cfg["max_documents"]).rows) for split in splits]

    def batches(self, size: int) -> int:
        """See `Evaluation.batches`."""
        return sum(num_batches(self._models, count, size) for count in self._rows)

    def job(self, execution: Execution) -> ScoreJob:
        """See `Evaluation.job`."""
        return ScoreJob(self._models, self._stores, execution, self._cfg["max_documents"])

    def compared(self, results: list[dict[str, list[Scores]]]) -> dict[str, Any]:
        """See `Evaluation.compared`."""
        base, tuned = (
            [total(parts) for parts in zip(*(result[name] for result in results), strict=True)]
            for name in ("base", "tuned")
        )
        whole = self._compared(joined(base), joined(tuned), sum(self._rows))
        if len(self._stores) > 1:
            each = map(self._compared, base, tuned, self._rows)
            whole["datasets"] = dict(zip(self._cfg["datasets"], each, strict=True))
        return whole

    def _compared(self, base: Scores, tuned: Scores, rows: int) -> dict[str, Any]:
        samples, confidence = self._cfg["bootstrap_samples"], self._cfg["confidence"]
        return {
            "rows": rows,
            "documents": len(base.by_document().tokens),
            "tokens": int(base.tokens.sum()),
            "bytes": int(base.bytes.sum()),
            "confidence": confidence,
            **compare_scores(base, tuned, samples, confidence),
        }


evaluation = LanguageEvaluation
