"""The results of batches on disk, so that the next process goes on where one was killed.

Each worker appends to a file of its own. A result is a line and the bytes of arrays: the line has a
CRC-32 of itself, one of these bytes, the batch, and the types and shapes of the arrays.
"""

import json
import os
import shutil
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from moray.provenance.space import bytes_below, explain_full_disk

SUFFIX = ".batches"

# What a kill may cost.
_SECONDS_BETWEEN_FLUSHES = 1.0
_LONGEST_LINE = 2**16
_DIGITS = 8

Arrays = Mapping[str, NDArray[Any]]
"""What was computed of a batch, by name."""


class Batch(NamedTuple):
    """A batch of the rows or prompts of a part of a job, for one of its models."""

    model: str
    part: str
    number: int


class _Place(NamedTuple):
    """Where a result is: its file, the line about it, and where its arrays begin."""

    file: Path
    line: bytes
    start: int


class BatchResults:
    """The results that the files of a folder have, whoever wrote them.

    What follows a damaged line, or arrays that aren't whole, isn't among them.

    Attributes:
        seconds: that it took to compute them.
    """

    def __init__(self, folder: Path | None) -> None:
        """Read the lines; a folder that doesn't exist has none."""
        self.seconds = 0.0
        self._places: dict[Batch, list[_Place]] = defaultdict(list)
        for file in sorted(folder.glob(f"*{SUFFIX}")) if folder else ():
            self._read_lines(file)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, batch: Batch) -> Arrays | None:
        """The result of a batch; None if there is none whose bytes are those that were written."""
        for path, line, start in self._places.get(batch, ()):
            facts = json.loads(line)
            with path.open("rb") as file:
                file.seek(start)
                content = file.read(facts["bytes"])
            if zlib.crc32(content) == facts["crc"]:
                return _arrays(facts["arrays"], content)
        return None

    def _read_lines(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            while whole := file.readline(_LONGEST_LINE):
                crc, line = whole[:_DIGITS], whole[_DIGITS:]
                if not line.endswith(b"\n") or crc != _digest(line):
                    return
                facts, start = json.loads(line), file.tell()
                if start + facts["bytes"] > size:
                    return
                self._places[Batch(*facts["batch"])].append(_Place(path, line, start))
                self.seconds += facts["seconds"]
                file.seek(facts["bytes"], os.SEEK_CUR)


class BatchWriter:
    """Appends results to a file, which is created with the first; use as a context manager."""

    def __init__(self, path: Path, num_workers: int = 1) -> None:
        """Time begins to count.

        Args:
            num_workers: how many compute at the same time, so that their seconds aren't added up.
        """
        self._path, self._num_workers = path, num_workers
        self._file: BinaryIO | None = None
        self._added_at = self._flushed_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            with explain_full_disk(self._path.parent):
                self._file.close()

    def add(self, batch: Batch, arrays: Arrays) -> None:
        """Append the result of a batch; it is on disk within a second, or with the next one.

        Raises:
            UserError: if the disk is full.
        """
        now, content = time.monotonic(), b"".join(array.tobytes() for array in arrays.values())
        facts = {
            "batch": batch,
            "arrays": [[name, array.dtype.str, array.shape] for name, array in arrays.items()],
            "seconds": round((now - self._added_at) / self._num_workers, 6),
            "bytes": len(content),
            "crc": zlib.crc32(content),
        }
        line = json.dumps(facts).encode() + b"\n"
        with explain_full_disk(self._path.parent):
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("wb")
            self._file.write(_digest(line) + line + content)
            if now - self._flushed_at > _SECONDS_BETWEEN_FLUSHES:
                self._file.flush()
                self._flushed_at = now
        self._added_at = now


def batches_folder(output: Path, key: str) -> Path:
    """Where the results that become an output are until it is whole; those of another key go.

    Args:
        output: a file or a folder; absolute.
        key: digest of all that decides on the results, hexadecimal digits.
    """
    folder = output.with_name(f"{_prefix(output)}{key}")
    for other in _folders(output):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def remove_batches(output: Path) -> None:
    """Remove the results that an output was made of."""
    for folder in _folders(output):
        shutil.rmtree(folder, ignore_errors=True)


def bytes_of_batches(output: Path) -> int:
    """The size of the results for an output that are on disk."""
    return sum(map(bytes_below, _folders(output)))


def _folders(output: Path) -> Iterator[Path]:
    prefix = _prefix(output)
    for folder in output.parent.iterdir():
        name, key = folder.name[: len(prefix)], folder.name[len(prefix) :]
        # The name of another output may go on with a hyphen.
        if name == prefix and "-" not in key:
            yield folder


def _prefix(output: Path) -> str:
    return f".batches-{output.name}-"


def _digest(line: bytes) -> bytes:
    return b"%08x" % zlib.crc32(line)


def _arrays(layout: list[tuple[str, str, list[int]]], content: bytes) -> Arrays:
    arrays: dict[str, NDArray[Any]] = {}
    start = 0
    for name, kind, shape in layout:
        arrays[name] = np.ndarray(shape, kind, content, start)
        start += arrays[name].nbytes
    return arrays
