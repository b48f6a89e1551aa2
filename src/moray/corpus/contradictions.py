"""Rows that contradict each other: equal ones that are judged in different ways."""

from collections.abc import Iterator

from moray.corpus.dataset import Document, content, digest, plain_text

_SHOWN = 40
# Of which rows are remembered, some 180 bytes each.
_MOST_ROWS = 1_000_000


class Contradictions:
    """The rows of a dataset that others contradict, however many splits they are in.

    Of more than a million different rows, those that equal one of the first million.
    """

    def __init__(self) -> None:
        # By the digest of a row, the hash of its first judgement.
        self._first: dict[bytes, int] = {}
        self._contradicted = set[bytes]()
        self._example: Document = Document()

    def note(self, document: Document, identity: bytes) -> None:
        """Note a row.

        Args:
            identity: the digest of its content.
        """
        if "chosen" in document:
            judgement = str(document["chosen"] < document["rejected"])
            identity = digest(_either_way(document))
        elif "tags" in document:
            judgement = document["tags"]
        elif document.get("label") is not None:
            judgement = str(document["label"])
        else:
            return
        if len(self._first) < _MOST_ROWS:
            self._first.setdefault(identity, hash(judgement))
        if self._first.get(identity, hash(judgement)) != hash(judgement):
            self._example = self._example or document
            self._contradicted.add(identity)

    def lines(self, dataset: str) -> Iterator[str]:
        """A line about a dataset with such rows."""
        number, example = len(self._contradicted), self._example
        if not number:
            return
        if "chosen" in example:
            what, kept = "pairs are there with either answer as the chosen one", "all are kept"
        else:
            judged = "tags" if "tags" in example else "labels"
            what = f"{_noun(example)} are there with different {judged}"
            kept = "validation and test keep the first of each"
        yield f"dataset {dataset}: {number:,} {what}, such as {_shown(example)}; {kept}"


def _either_way(document: Document) -> str:
    """The content of a pair, whichever answer is the better one."""
    first, second = sorted((document["chosen"], document["rejected"]))
    return content(Document(**{**document, "chosen": first, "rejected": second}))


def _noun(document: Document) -> str:
    if "image" in document:
        return "images"
    return "answers" if "completion" in document else "texts"


def _shown(document: Document) -> str:
    if "image" in document:
        return document.get("place", "an image without a place")
    text = plain_text(document)
    return repr(text[:_SHOWN] + "…" * (len(text) > _SHOWN))
