"""Parts of a source: some megabytes of its rows, which any process on any node can read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from moray.corpus.dataset import Document
from moray.corpus.findings import Findings

Row = TypeVar("Row")

PART_BYTES = 2 * 2**20
# Small rows take more memory as objects.
_MOST_ROWS = 20_000


class Part(Protocol):
    """Some rows of a split, with their content: it can be pickled, and be read elsewhere."""

    @property
    def num_bytes(self) -> int:
        """How much of the source's `num_bytes` they are."""

    def documents(self, findings: Findings) -> Iterator[Document]:
        """Yield the documents.

        Args:
            findings: gets what is found out about the rows.

        Raises:
            UserError: if they can't be read; it names them and their place.
        """


Splits = Mapping[str, Callable[[], Iterator[Part]]]
"""The parts of each split of a source, from the start."""


@dataclass(frozen=True)
class ReadyDocuments:
    """Documents that were made by a source that can't be divided."""

    made: list[Document]
    num_bytes: int = 0

    def documents(self, findings: Findings) -> Iterator[Document]:
        return iter(self.made)


def ready_parts(make: Callable[[], Iterable[Document]]) -> Iterator[Part]:
    """The parts of documents that a function makes."""
    return map(ReadyDocuments, in_groups(make(), size_of_texts))


def in_groups(
    rows: Iterable[Row], size_of: Callable[[Row], int], most: int = _MOST_ROWS
) -> Iterator[list[Row]]:
    """Group rows, so that each group has some megabytes.

    Args:
        most: the most rows in a group.
    """
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += size_of(row)
        if size >= PART_BYTES or len(group) == most:
            yield group
            group, size = [], 0
    if group:
        yield group


def size_of_texts(row: Mapping[str, Any]) -> int:
    """About the number of bytes of a row, without values within others."""
    return sum(len(value) for value in row.values() if isinstance(value, str | bytes))
