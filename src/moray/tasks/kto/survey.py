"""How many answers of a dataset are good."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from moray.config.schema.datasets import Dataset
from moray.corpus.dataset import Document
from moray.errors import UserError


def survey_of(section: Dataset) -> "Judgements":
    """The survey of a dataset that is read now."""
    return Judgements()


class Judgements:
    """The `Survey` of a dataset of answers that are good or bad."""

    noun = "answer"

    def __init__(self) -> None:
        self._path = ""
        self._counts = Counter[tuple[str, bool]]()

    def check(self, path: str) -> None:
        self._path = path

    def note(self, split: str, document: Document) -> None:
        self._counts[split, document["label"]] += 1

    def facts(self) -> dict[str, Any]:
        """The number of good answers of each split.

        Raises:
            UserError: if all answers to train on are good, or all are bad.
        """
        good, bad = (self._counts["train", label] for label in (True, False))
        if not good or not bad:
            raise UserError(
                self._path,
                f"got {good:,} good and {bad:,} bad answers to train on, expected some of both",
                "add rows with the other label; to learn good answers alone, use format: "
                "prompt-completion or messages",
            )
        return {"desirable": {split: n for (split, good), n in self._counts.items() if good}}

    @property
    def summary(self) -> str:
        good = sum(number for (_, label), number in self._counts.items() if label)
        return f"answers, {good / self._counts.total():.0%} of them good"

    def lines(self, dataset: str) -> Iterator[str]:
        yield from ()
