"""The rows of a split on disk: records of any NumPy type, mapped into memory.

The file `{split}.rows` holds records without padding, little-endian. Rows are grouped into windows:
a window contains what was made from one row group of the dataset. The store's manifest names its
task and its record's fields, and lists the number of rows in each window. `{split}.groups` says
which documents of the split belong together.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from moray.provenance.manifest import read_manifest
from moray.rows.journal import INTERRUPTIONS, Journal

Record = np.dtype[np.void]
"""The type of a row."""

Rows = NDArray[np.void]
"""Records, shape (rows,)."""

Counts = Counter[tuple[str, ...]]
"""Numbers by their names, some of which have several words."""

WindowReader = Callable[[int], Rows]
"""Returns the rows of a window of the train split, in any process."""


@dataclass(frozen=True)
class RowPositions:
    """Positions of rows in an order's sequence, shape (rows,): each says both epoch and row."""

    seed: int
    positions: NDArray[np.int64]

    def at(self, indices: NDArray[np.int64]) -> "RowPositions":
        return RowPositions(self.seed, self.positions[indices])


def describe(record: Record) -> list[list[Any]]:
    """The fields of a record for a manifest: name, type and shape of each."""
    assert record.names
    fields = ((name, record[name]) for name in record.names)
    return [[name, kind.base.str, list(kind.shape)] for name, kind in fields]


def record_of(manifest: dict[str, Any]) -> Record:
    """The type of the rows of a store, from its manifest."""
    return np.dtype([(name, kind, tuple(shape)) for name, kind, shape in manifest["record"]])


class StoredRows:
    """The rows of a split, read-only and memory-mapped: opening them takes no memory.

    Attributes:
        rows: shape (rows,).
        windows: number of rows in each window.
    """

    def __init__(self, folder: Path, split: str) -> None:
        manifest = read_manifest(folder)
        facts = manifest["splits"][split]
        self.windows: list[int] = facts["windows"]
        shape = (facts["rows"],)
        self.rows: Rows = map_file(folder / f"{split}.rows", record_of(manifest), shape)

    def __len__(self) -> int:
        return len(self.rows)


class RowsWriter:
    """Appends windows of rows to a split and counts them.

    Attributes:
        counts: sums over the windows.
        num_resumed: number of windows that an earlier process wrote.
    """

    def __init__(
        self, folder: Path, split: str, keep: bool = True, journal: Journal | None = None
    ) -> None:
        """Open the split's file.

        Args:
            keep: whether rows are written; otherwise, they are only counted.
            journal: of the folder; the windows in it are there already.
        """
        self._folder = folder if keep else None
        self._split, self._journal = split, journal
        lines = journal.lines(split) if journal else []
        self._sizes: dict[str, int] = lines[-1]["sizes"] if lines else {}
        self._windows: list[int] = [line["rows"] for line in lines]
        self.counts = Counts()
        for line in lines:
            self.counts.update({tuple(key): number for *key, number in line["counts"]})
        self.num_resumed = len(lines)
        self._stack, self._files = ExitStack(), dict[str, BinaryIO]()
        self._rows = self.open(f"{split}.rows")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._stack:
            if self._journal and (kind is None or issubclass(kind, INTERRUPTIONS)):
                self._journal.flush(self._files.values())

    def open(self, name: str) -> BinaryIO | None:
        """A file of the split, closed with the others; None if rows are only counted."""
        if self._folder is None:
            return None
        file = self._stack.enter_context((self._folder / name).open("ab"))
        file.truncate(self._sizes.get(name, 0))
        self._files[name] = file
        return file

    def add(self, rows: Rows, weight: int, counts: Counts | None = None) -> None:
        """Append a window; the loss of its rows is averaged over the weight, see `Task.weight`.

        Args:
            counts: what it adds to the sums; what else is written of it was written before.
        """
        if self._rows:
            # Written from the buffer: `tobytes` would copy the window, which can be large.
            self._rows.write(rows.view("u1").data)
        counts = Counts({("weight",): weight, **(counts or {})})
        self._windows.append(len(rows))
        self.counts.update(counts)
        if self._journal:
            line = {
                "rows": len(rows),
                "counts": [[*key, number] for key, number in counts.items()],
                "sizes": {name: file.tell() for name, file in self._files.items()},
            }
            self._journal.add(self._split, line, self._files.values())

    @property
    def num_rows(self) -> int:
        return sum(self._windows)

    def facts(self) -> dict[str, Any]:
        weight = self.counts["weight",]
        return {"rows": self.num_rows, "weight": weight, "windows": self._windows}


def map_file(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Map a file of numbers into memory, read-only."""
    if shape[0] == 0:
        return np.zeros(shape, dtype)  # an empty file can't be mapped
    return np.memmap(path, dtype, "r", shape=shape)


def sample(total: int, count: int) -> NDArray[np.int64]:
    """Draw `count` numbers below `total` without replacement, ascending; all if there are fewer.

    The seed is fixed, so that every evaluation, run and number of workers scores the same sample. A
    smaller sample is a subset of a larger one.
    """
    return np.sort(np.random.default_rng(0).permutation(total)[:count])


def write_groups(store: Path, split: str, groups: Iterable[str]) -> None:
    """Write which documents of a split belong together: those of equal groups."""
    first: dict[bytes, int] = {}
    numbers = [
        first.setdefault(hashlib.blake2b(group.encode(), digest_size=16).digest(), number)
        for number, group in enumerate(groups)
    ]
    np.array(numbers, "<i8").tofile(_groups_file(store, split))


def groups_of(store: Path, split: str, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first document of the group of each document, by their numbers in the split."""
    return np.fromfile(_groups_file(store, split), "<i8")[documents]


def _groups_file(store: Path, split: str) -> Path:
    return store / f"{split}.groups"
