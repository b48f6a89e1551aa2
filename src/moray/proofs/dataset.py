"""A downloaded dataset by plain readers: no row is lost, and splits share nothing.

Files are read again by pandas, PyArrow and the JSON of Python's library, and splits by PyArrow.
"""

import csv
import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from moray.proofs.comparison import Comparison

# What a machine reads in a second; see `budget`.
_BYTES_PER_SECOND, _ROWS_PER_SECOND = 30e6, 300e3
_FEW_SECONDS, _SHARE = 3.0, 0.02
_TOO_LARGE = "reading the rows again takes too long"
# Documents may have megabytes; the reader's default is 65,536 of them.
_ROWS_AT_ONCE = 256
# Columns that say where a row belongs or comes from, which isn't content.
_NO_CONTENT = ("group", "place")


def compare_dataset(
    folder: Path,
    description: Mapping[str, Any],
    files: Mapping[str, Sequence[str]],
    seconds: float,
    by_rows: bool,
    written: Mapping[str, Any],
    apart: bool,
) -> Iterator[Comparison]:
    """Compare the rows of a dataset with those of its files, and its splits with each other.

    Args:
        folder: with a Parquet file for each split.
        description: `dataset.json`.
        files: those of the user, by split; empty for other sources.
        seconds: that it took to write the splits.
        by_rows: whether each row of a file becomes one row, unless it is dropped.
        written: the keys of the dataset that say how its tables are written and how many rows of
            them are read, if they aren't at their defaults.
        apart: whether the splits were made by their rows, so that they can share none.
    """
    room = max(_FEW_SECONDS, _SHARE * seconds)
    paths = [Path(name) for names in files.values() for name in names]
    encoding, most = written.get("encoding", "utf-8-sig"), written.get("max_rows")
    delimiters = {name: written.get("delimiter", ",") for names in files.values() for name in names}
    delimiters |= description.get("delimiters", {})
    counters = {
        split: [_num_rows(Path(name), encoding, delimiters[name]) for name in names]
        for split, names in files.items()
        if by_rows
    }
    if counters and all(None not in some for some in counters.values()):
        what, library = "rows of the files", f"pyarrow {version('pyarrow')} and csv"
        if sum(path.stat().st_size for path in paths) > room * _BYTES_PER_SECOND:
            yield Comparison(what, skipped=_TOO_LARGE)
        else:
            totals = (sum(count() for count in some) for some in counters.values())
            rows = sum(min(total, most or total) for total in totals)
            yield Comparison(what, _num_accounted_for(description), rows, library, rows)
    splits = {split: folder / f"{split}.parquet" for split in description["splits"]}
    num_rows = sum(split["rows"] for split in description["splits"].values())
    size = sum(path.stat().st_size for path in splits.values())
    if size > room * _BYTES_PER_SECOND or num_rows > room * _ROWS_PER_SECOND:
        yield Comparison("rows that are in two splits", skipped=_TOO_LARGE)
        return
    yield from _disjoint(splits, apart)


def _num_accounted_for(description: Mapping[str, Any]) -> int:
    """The rows that were kept, or dropped for a reason."""
    in_splits = sum(split["rows"] for split in description["splits"].values())
    kinds = ("duplicates", "blanks", "near_copies")
    dropped = sum(sum(description.get(kind, {}).values()) for kind in kinds)
    bad = sum(reason["rows"] for reason in description.get("bad_rows", ()))
    return int(in_splits + dropped + bad)


def _num_rows(path: Path, encoding: str, delimiter: str) -> Any:
    """A function that counts the rows of a file; None for a kind that isn't counted."""
    name = path.name.lower()
    opener = gzip.open if name.endswith(".gz") else open
    name = name.removesuffix(".gz")

    def lines(end: str) -> Iterator[str]:
        with opener(path, "rt", encoding=encoding, newline=end) as file:
            yield from file

    def num_lines() -> int:
        return sum(bool(line.strip()) for line in lines("\n"))

    if name.endswith(".parquet"):
        return lambda: pq.read_metadata(path).num_rows
    if name.endswith((".jsonl", ".ndjson")):
        return num_lines
    # Between tabs, quotes may be part of the text.
    if name.endswith(".csv") and delimiter != "\t":
        # An empty line has no cells, a row of empty values has.
        return lambda: sum(map(bool, csv.reader(lines(""), delimiter=delimiter))) - 1
    if name.endswith(".json"):
        is_list = next((line.lstrip()[0] for line in lines("\n") if line.strip()), "") == "["
        return (lambda: len(json.loads("".join(lines("\n"))))) if is_list else num_lines
    return None


def _disjoint(splits: Mapping[str, Path], apart: bool) -> Iterator[Comparison]:
    # Of each split, hashes of its rows as they are and without white space, shape (rows, 2).
    contents = [
        np.fromiter(chain.from_iterable(_contents(path)), np.int64).reshape(-1, 2)
        for path in splits.values()
    ]
    groups = [np.fromiter(map(hash, {*_groups(path)}), np.int64) for path in splits.values()]
    library = f"pyarrow {version('pyarrow')}"
    rows = sum(map(len, contents))
    shared = _shared(hashes[:, 0] for hashes in contents)
    yield Comparison("rows that are in two splits", 0, shared, library, rows, advisory=not apart)
    # Rows differ if their white space does, so this is about the user's data.
    yield Comparison(
        "rows that are in two splits but for white space",
        0,
        _shared(hashes[:, 1] for hashes in contents) - shared,
        library,
        rows,
        advisory=True,
    )
    if any(map(len, groups)):
        yield Comparison(
            "groups that are in two splits", 0, _shared(groups), library, rows, advisory=not apart
        )


def _shared(splits: Iterable[NDArray[np.int64]]) -> int:
    """How many hashes are in more than one split."""
    of_each = [np.unique(hashes) for hashes in splits]
    _, counts = np.unique(np.concatenate(of_each), return_counts=True)
    return int((counts > 1).sum())


def _contents(path: Path) -> Iterator[tuple[int, int]]:
    """Hashes of each row's content, as it is and without white space at the ends of texts."""
    for rows in _batches(path):
        for row in rows:
            parts = [row[name] for name in row if name not in _NO_CONTENT]
            bare = [part.strip() if isinstance(part, str) else part for part in parts]
            yield hash(tuple(parts)), hash(tuple(bare))


def _groups(path: Path) -> Iterator[str]:
    """The groups of rows, numbers as such: 1 and 1.0 are one."""
    if "group" not in pq.read_schema(path).names:
        return
    for rows in _batches(path, ["group"]):
        for row in rows:
            if row["group"] is not None:
                yield _number(row["group"].strip())


def _number(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return text
    return f"{number:.12g}" if math.isfinite(number) else text


def _batches(path: Path, columns: list[str] | None = None) -> Iterable[list[dict[str, Any]]]:
    with pq.ParquetFile(path) as table:
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=columns):
            yield batch.to_pylist()
