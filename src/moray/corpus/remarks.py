"""What is said of rows that are valid, but may not be what their author meant."""

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
        self._found: dict[str, tuple[str, bool]] = {}

    def add(self, subject: str, text: str, is_warning: bool = False) -> None:
        """Note a remark; only the first on a subject is kept. `{place}` in it is the row's."""
        if subject not in self._found:
            self._found[subject] = text.replace("{place}", self.place), is_warning

    def told(self, dataset: str) -> list[str]:
        """The lines about a dataset, in the order in which they were made."""
        return [
            f"{'warning: ' * is_warning}dataset {dataset}: {text}"
            for text, is_warning in self._found.values()
        ]


def count_repeated(
    rows: Iterator[tuple[str, Document]], repeated: Counter[str]
) -> Iterator[tuple[str, Document]]:
    """Pass rows on, and count in each split those whose answers begin with their whole prompt."""
    for split, document in rows:
        prompt = document.get("prompt", "")
        if prompt and len(prompt.strip()) >= _FEWEST_CHARACTERS:
            chosen = document.get("chosen", "")
            answers = [document["completion"]] if not chosen else [chosen, document["rejected"]]
            repeated[split] += all(answer.startswith(prompt) for answer in answers)
        yield split, document
