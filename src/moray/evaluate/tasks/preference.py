"""Preference runs: margins of held-out pairs."""

from pathlib import Path
from typing import Any

from moray.config.schema import Preference
from moray.evaluate.execution import Execution, num_batches
from moray.evaluate.likelihood import Scores, total
from moray.evaluate.pairs import ScorePairsJob, score_pairs_on_worker
from moray.evaluate.preferences import compare_preferences
from moray.evaluate.selection import select_documents
from moray.tasks.language.store import StoredSplit


class PreferenceEvaluation:
    """Scores of the pairs of one dataset."""

    figures = ("reward_margin", "reward_accuracy", "chosen_bits_per_byte")
    entry_point = staticmethod(score_pairs_on_worker)

    def __init__(
        self, models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
    ) -> None:
        self._models, self._stores, self._cfg = models, stores, cfg
        (store,) = stores
        selection = select_documents(StoredSplit(store, "test"), cfg["max_documents"])
        self._rows = len(selection.rows)

    def batches(self, size: int) -> int:
        """See `Evaluation.batches`."""
        return num_batches(self._models, self._rows, size)

    def job(self, execution: Execution) -> ScorePairsJob:
        """See `Evaluation.job`."""
        most = self._cfg["max_documents"]
        return ScorePairsJob(self._models, self._stores, execution, ("test",), most)

    def compared(self, results: list[dict[str, dict[str, Scores]]]) -> dict[str, Any]:
        """See `Evaluation.compared`."""
        base, tuned = (
            total([result[name]["test"] for result in results]) for name in ("base", "tuned")
        )
        samples, confidence = self._cfg["bootstrap_samples"], self._cfg["confidence"]
        preference = Preference(**self._cfg["preference"])
        return {
            "rows": self._rows,
            "pairs": len(base.tokens) // 2,
            "tokens": int(base.tokens.sum()),
            "confidence": confidence,
            "resampled": "pairs",
            **compare_preferences(base, tuned, preference, samples, confidence),
        }


evaluation = PreferenceEvaluation
