"""Hold out documents: the source's own splits, a share chosen by hash, or the end of the text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moray.corpus.copies import Copies, Copy
from moray.corpus.dataset import SPLITS, Document, documents_of
from moray.corpus.staging import Fact, StagedRows, Staging, digests, numbers

_TRAIN, _VALIDATION, _TEST = range(len(SPLITS))

Divided = Iterator[tuple[pa.Table, NDArray[np.uint8]]]
"""Rows of a dataset, and the number in `SPLITS` of each one's split."""


@dataclass(frozen=True)
class Counts:
    """Numbers of rows by split.

    Attributes:
        related: of the rows that the source holds out, how many have their group in train.
        near: near copies that were dropped from train, by kind.
        kept: rows of train that are copies of others there, if they were looked for and kept.
    """

    duplicates: Counter[str] = field(default_factory=Counter)
    blanks: Counter[str] = field(default_factory=Counter)
    related: Counter[str] = field(default_factory=Counter)
    near: Counter[Copy] = field(default_factory=Counter)
    kept: Counter[Copy] = field(default_factory=Counter)


def by_hash(
    rows: StagedRows, counts: Counts, copies: Copies | None = None, keeps_copies: bool = False
) -> Divided:
    """Divide rows by the hashes of their groups, see `Staging` and `group_of`.

    A document's split doesn't depend on the other documents. If exact duplicates fall into
    different splits, test keeps its copy before validation, and validation before train. Within
    test and within validation, one copy is kept. Blank documents are dropped.

    Args:
        counts: updated.
        copies: finds the documents of train to drop as copies of others; None to keep those.
        keeps_copies: whether copies are only counted.
    """
    held_out = _HeldOut(rows)
    kinds = _Kinds(copies, rows)
    for split in rows.splits:
        for table in rows.tables(split):
            table, splits = _without_blanks(table, numbers(table, Fact.SPLIT), counts.blanks)
            kind = kinds.of(splits)
            is_copy = ~held_out.keep(splits, digests(table, Fact.IDENTITY))
            if keeps_copies:
                counts.kept.update(map(Copy, kind[~is_copy & (kind != Copy.NONE)].tolist()))
                kind[:] = Copy.NONE
            is_copy |= kind == Copy.EXACT
            _add(counts.duplicates, splits[is_copy])
            is_near = ~is_copy & (kind != Copy.NONE)
            counts.near.update(map(Copy, kind[is_near].tolist()))
            table, splits = _where(~(is_copy | is_near), table, splits)
            held_out.relate(split, table, splits)
            yield table, splits
    counts.related.update(held_out.related())


class _Kinds:
    """What each row is a copy of, one table after another."""

    def __init__(self, copies: Copies | None, rows: StagedRows) -> None:
        self._of_train: NDArray[np.uint8] | None = None
        self._next = 0
        if copies is None:
            return
        for split in rows.splits:
            for table in rows.facts(split):
                table = table.filter(pa.array(~numbers(table, Fact.BLANK)))
                has_sketches = Fact.SKETCH in table.column_names
                copies.note(
                    numbers(table, Fact.SPLIT) == _TRAIN,
                    digests(table, Fact.IDENTITY),
                    digests(table, Fact.SKETCH) if has_sketches else None,
                )
        self._of_train = copies.find()

    def of(self, splits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The `Copy` of each row of the next table, which has no blank ones, shape (rows,)."""
        kinds = np.full(len(splits), Copy.NONE, np.uint8)
        if self._of_train is not None:
            is_train = splits == _TRAIN
            end = self._next + int(is_train.sum())
            kinds[is_train] = self._of_train[self._next : end]
            self._next = end
        return kinds


class _HeldOut:
    """The rows that are held out, by digests: 16 bytes of memory for each, and for its group."""

    def __init__(self, rows: StagedRows) -> None:
        identities: dict[int, list[NDArray[np.bytes_]]] = {_TEST: [], _VALIDATION: []}
        groups: list[NDArray[np.bytes_]] = []
        for split in rows.splits:
            for table in rows.facts(split):
                splits, found = numbers(table, Fact.SPLIT), digests(table, Fact.IDENTITY)
                for number, of_split in identities.items():
                    of_split.append(found[splits == number])
                if split != "train":
                    groups.append(_groups_of_several(table))
        test, validation = (_sorted(some) for some in identities.values())
        # What is in both is test's.
        validation = validation[_places(validation, test) < 0]
        self._identities = {_TEST: test, _VALIDATION: validation}
        self._is_written = {
            number: np.zeros(len(some), np.bool_) for number, some in self._identities.items()
        }
        self._groups = _sorted(groups)
        self._is_in_train = np.zeros(len(self._groups), np.bool_)
        # Of each split that the source holds out, the places of its rows' groups.
        self._related: dict[str, list[NDArray[np.int64]]] = {
            split: [] for split in rows.splits if split != "train"
        }

    def keep(self, splits: NDArray[np.uint8], identities: NDArray[np.bytes_]) -> NDArray[np.bool_]:
        """Whether each row of the next table is no copy of one that is held out, shape (rows,)."""
        places = {number: _places(identities, some) for number, some in self._identities.items()}
        keep: NDArray[np.bool_] = (places[_TEST] < 0) & (places[_VALIDATION] < 0)
        for number, is_written in self._is_written.items():
            own = splits == number
            keep[own] = _are_new(places[number][own], is_written)
        return keep

    def relate(self, split: str, table: pa.Table, splits: NDArray[np.uint8]) -> None:
        """Note the groups of the rows that are kept of the next table of a split."""
        if not self._groups.size:
            return
        if split == "train":
            table, _ = _where(splits == _TRAIN, table, splits)
        places = _places(_groups_of_several(table), self._groups)
        if split == "train":
            self._is_in_train[places[places >= 0]] = True
        else:
            self._related[split].append(places)

    def related(self) -> dict[str, int]:
        """How many rows of each split that the source holds out have their group in train."""
        return {
            split: sum(int(self._is_in_train[some].sum()) for some in places)
            for split, places in self._related.items()
        }


def _groups_of_several(table: pa.Table) -> NDArray[np.bytes_]:
    """The digests of groups that aren't a row alone."""
    groups = digests(table, Fact.GROUP)
    found: NDArray[np.bytes_] = groups[groups != digests(table, Fact.IDENTITY)]
    return found


def _sorted(some: list[NDArray[np.bytes_]]) -> NDArray[np.bytes_]:
    """Different digests in order."""
    return np.unique(np.concatenate([np.empty(0, "S16"), *some]))


def _places(values: NDArray[np.bytes_], among: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """The place of each value among sorted ones; -1 if it isn't one of them."""
    if not len(among):
        return np.full(len(values), -1, np.int64)
    places = np.searchsorted(among, values)
    places[places == len(among)] = 0
    return np.where(among[places] == values, places, -1)


def _are_new(places: NDArray[np.int64], is_written: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each place is there for the first time; they are marked as written."""
    _, first = np.unique(places, return_index=True)
    is_new = np.zeros(len(places), np.bool_)
    is_new[first] = True
    is_new &= places >= 0
    is_new[is_new] = ~is_written[places[is_new]]
    is_written[places[is_new]] = True
    return is_new


def by_tail(
    rows: StagedRows, counts: Counts, staging: Staging, validation: float, test: float
) -> Divided:
    """Hold out the end of the text: the last `test` share, and the `validation` share before it.

    A document that crosses a boundary is cut there. Shares are fractions of train's characters.
    Blank documents and parts are dropped.
    """
    texts = (table["text"] for table in rows.tables("train"))
    total = sum(pc.sum(pc.utf8_length(some)).as_py() or 0 for some in texts)
    ends = {
        _TRAIN: round(total * (1 - validation - test)),
        _VALIDATION: round(total * (1 - test)),
        _TEST: total,
    }
    position = 0
    for table in rows.tables("train"):
        parts = [*_cut(documents_of(table), ends, position)]
        position += sum(len(document["text"]) for _, document in parts)
        splits = np.array([split for split, _ in parts], np.uint8)
        cut = staging.table("train", [document for _, document in parts])
        yield _without_blanks(cut, splits, counts.blanks)
    for split in rows.splits:
        for table in rows.tables(split) if split != "train" else ():
            yield _without_blanks(table, numbers(table, Fact.SPLIT), counts.blanks)


def _cut(
    documents: Iterable[Document], ends: Mapping[int, int], position: int
) -> Iterator[tuple[int, Document]]:
    """The parts of documents in each split, which ends after so many characters.

    Args:
        position: number of characters before the first document.
    """
    for document in documents:
        text = document["text"]
        if not text:
            yield next(split for split, end in ends.items() if position <= end), Document(text="")
        for split, end in ends.items():
            part, text = text[: max(0, end - position)], text[max(0, end - position) :]
            position += len(part)
            if part:
                yield split, Document(text=part)


def _without_blanks(
    table: pa.Table, splits: NDArray[np.uint8], blanks: Counter[str]
) -> tuple[pa.Table, NDArray[np.uint8]]:
    is_blank = numbers(table, Fact.BLANK)
    _add(blanks, splits[is_blank])
    return _where(~is_blank, table, splits)


def _where(
    mask: NDArray[np.bool_], table: pa.Table, splits: NDArray[np.uint8]
) -> tuple[pa.Table, NDArray[np.uint8]]:
    return (table, splits) if mask.all() else (table.filter(pa.array(mask)), splits[mask])


def _add(counts: Counter[str], splits: NDArray[np.uint8]) -> None:
    """Count splits, in the order of their first rows."""
    for number, times in Counter(splits.tolist()).items():
        counts[SPLITS[number]] += times
