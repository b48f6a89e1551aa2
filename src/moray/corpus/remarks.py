"""Remarks about rows that are valid, but may not be what their author meant."""

from collections import Counter
from collections.abc import Iterator

from moray.corpus.dataset import Document

# A shorter prompt may begin its answer by chance.
_FEWEST_CHARACTERS = 10


class Remarks:
    """Each remark once, with the place of the first row that it is about.

    Attributes:
        place: the row that is being read, such as a file and a line.
    """

    def __init__(self) -> None:
        self.place = ""
        self._remarks: dict[str, tuple[str, bool]] = {}

    def add(self, subject: str, text: str, is_warning: bool = False) -> None:
        """Add a remark, unless its subject has one; `{place}` in it becomes the row's place."""
        if subject not in self._remarks:
            self._remarks[subject] = text.replace("{place}", self.place), is_warning

    def lines(self, dataset: str) -> list[str]:
        """Lines about a dataset, from the oldest remark to the newest."""
        return [
            f"{'warning: ' * is_warning}dataset {dataset}: {text}"
            for text, is_warning in self._remarks.values()
        ]


def count_repeated_prompts(
    rows: Iterator[tuple[str, Document]], counts: Counter[str]
) -> Iterator[tuple[str, Document]]:
    """Pass rows on, and count those of each split whose answers begin with their whole prompt."""
    for split, document in rows:
        prompt = document.get("prompt", "")
        if prompt and len(prompt.strip()) >= _FEWEST_CHARACTERS:
            chosen = document.get("chosen", "")
            answers = [document["completion"]] if not chosen else [chosen, document["rejected"]]
            counts[split] += all(answer.startswith(prompt) for answer in answers)
        yield split, document
