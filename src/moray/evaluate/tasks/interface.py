"""The interface of a task's evaluation: a module that is imported by the name of the task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from moray.evaluate.execution import EvaluationJob, Execution
from moray.workers.entry import EntryPoint


class Evaluation(Protocol):
    """A comparison of models on the test splits of stores.

    Attributes:
        figures: those of the result that are printed.
        entry_point: runs on each worker and scores its share of the rows.
    """

    figures: Sequence[str]
    entry_point: EntryPoint[Any, Any]

    def batches(self, size: int) -> int:
        """Number of batches that all workers process together.

        Args:
            size: rows in a batch.
        """

    def job(self, execution: Execution) -> EvaluationJob:
        """What the entry point gets."""

    def compared(self, results: list[Any]) -> dict[str, Any]:
        """The content of `eval.json`.

        Args:
            results: of the entry point, by rank.

        Returns:
            For `base`, `tuned` and `difference`, each figure with its interval; and what they were
            computed from.
        """


class EvaluationModule(Protocol):
    """A module of this package."""

    def evaluation(
        self, models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
    ) -> Evaluation:
        """Prepare a comparison.

        Args:
            models: folders of `base` and `tuned`, absolute.
            stores: the run's stores, absolute, in the order of its datasets.
            cfg: see `stages.evaluate`.
        """
