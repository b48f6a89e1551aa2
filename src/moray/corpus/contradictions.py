"""Rows that contradict each other: equal ones that are judged in different ways."""

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from moray.corpus.dataset import Document, documents_of, plain_text
from moray.corpus.staging import Fact, StagedRows, without_facts

_SHOWN = 40
# Of which rows are remembered, some 180 bytes each.
_MOST_ROWS = 1_000_000


class Contradictions:
    """The rows of a dataset that others contradict, however many splits they are in.

    Of more than a million different rows, those that equal one of the first million.
    """

    def __init__(self, rows: StagedRows) -> None:
        """Find them among the rows of a source; blank ones don't count."""
        # By the digest of a row, that of its first judgement.
        first: dict[bytes, bytes] = {}
        self._contradicted = set[bytes]()
        self._example = Document()
        for split in rows.splits:
            for part, facts in enumerate(rows.facts(split)):
                for place, judged, judgement in _judgements(facts):
                    if len(first) < _MOST_ROWS:
                        first.setdefault(judged, judgement)
                    if first.get(judged, judgement) != judgement:
                        self._contradicted.add(judged)
                        self._example = self._example or _document(rows, split, part, place)

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


def _judgements(facts: pa.Table) -> Iterator[tuple[int, bytes, bytes]]:
    """The place of each row that is judged and not blank, and the digests of `judgement_of`."""
    if facts[Fact.JUDGED].null_count == len(facts):
        return
    columns = (facts[fact].to_pylist() for fact in (Fact.JUDGED, Fact.JUDGEMENT, Fact.BLANK))
    for place, (judged, judgement, blank) in enumerate(zip(*columns, strict=True)):
        if judged and not blank:
            yield place, judged, judgement


def _document(rows: StagedRows, split: str, part: int, place: int) -> Document:
    table = next(islice(rows.tables(split), part, None)).slice(place, 1)
    return documents_of(without_facts(table))[0]


def _noun(document: Document) -> str:
    if "image" in document:
        return "images"
    return "answers" if "completion" in document else "texts"


def _shown(document: Document) -> str:
    if "image" in document:
        return document.get("place") or "an image without a place"
    text = plain_text(document)
    return repr(text[:_SHOWN] + "…" * (len(text) > _SHOWN))
