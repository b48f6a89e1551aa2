"""Remarks about rows that are valid, but may not be what their author meant."""

from collections.abc import Mapping

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
        # Of each subject, the text, and whether it is a warning.
        self._remarks: dict[str, tuple[str, bool]] = {}

    def add(self, subject: str, text: str, is_warning: bool = False) -> None:
        """Add a remark, unless its subject has one; `{place}` in it becomes the row's place."""
        if subject not in self._remarks:
            self._remarks[subject] = text.replace("{place}", self.place), is_warning

    def as_json(self) -> dict[str, tuple[str, bool]]:
        """The remarks by their subjects, for `update`."""
        return self._remarks

    def update(self, later: Mapping[str, tuple[str, bool]]) -> None:
        """Add the remarks about a later part of the source."""
        for subject, (text, is_warning) in later.items():
            self._remarks.setdefault(subject, (text, is_warning))

    def lines(self, dataset: str) -> list[str]:
        """Lines about a dataset, from the oldest remark to the newest."""
        return [
            f"{'warning: ' * is_warning}dataset {dataset}: {text}"
            for text, is_warning in self._remarks.values()
        ]


def repeats_prompt(document: Document) -> bool:
    """Whether all answers of a row begin with its whole prompt."""
    prompt = document.get("prompt") or ""
    if len(prompt.strip()) < _FEWEST_CHARACTERS:
        return False
    chosen = document.get("chosen")
    answers = [chosen, document["rejected"]] if chosen else [document["completion"]]
    return all(answer.startswith(prompt) for answer in answers)
