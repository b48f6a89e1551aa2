"""Which parts of a folder are on disk, so that the next process goes on where one was killed.

The file `journal.jsonl` has a line for each window of a store, or for each part of a source, in
their order. Its first line has the key of the folder, a digest of all that decides on its content,
and the digest of the code, which decides on the form of what isn't whole yet. What the folder's
files have behind the sizes that the last line names is of none of them.
"""

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from moray.console import say
from moray.errors import UnreachableError
from moray.provenance.edits import code_digest
from moray.provenance.manifest import (
    DATASET,
    JOURNAL,
    MANIFEST,
    fingerprint,
    new_folder,
    sha256_file,
)
from moray.provenance.space import explain_full_disk

# What a kill may cost. Flushing to disk takes milliseconds.
_SECONDS_BETWEEN_LINES = 1.0

INTERRUPTIONS = (KeyboardInterrupt, SystemExit)
"""What ends a process that isn't at fault; Ray turns SIGTERM into the latter."""


class Journal:
    """The windows of each split that are on disk, or its parts.

    A line is a mapping with the `split` of a window, and the `sizes` of the files up to its end.
    """

    def __init__(self, path: Path, lines: Sequence[dict[str, Any]] = ()) -> None:
        """Go on with a file, which has these lines."""
        self._path, self._lines = path, lines
        self._waiting: list[dict[str, Any]] = []
        self._written_at = time.monotonic()

    def lines(self, split: str) -> list[dict[str, Any]]:
        """The lines of a split that an earlier process wrote."""
        return [line for line in self._lines if line["split"] == split]

    def add(self, split: str, line: dict[str, Any], files: Iterable[BinaryIO]) -> None:
        """Add the line of a window that was written to files; see `flush`."""
        self._waiting.append({"split": split, **line})
        if time.monotonic() - self._written_at > _SECONDS_BETWEEN_LINES:
            self.flush(files)

    def flush(self, files: Iterable[BinaryIO]) -> None:
        """Write the lines that are waiting, after what they are about."""
        if not self._waiting:
            return
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        with self._path.open("ab") as journal:
            journal.writelines(json.dumps(line).encode() + b"\n" for line in self._waiting)
            journal.flush()
            os.fsync(journal.fileno())
        self._waiting.clear()
        self._written_at = time.monotonic()


def key_of(dataset: Path, model: Path, cfg: dict[str, Any], code: str) -> str:
    """The key of the store of a dataset for a model, with settings, by a version of the code."""
    digests = [sha256_file(path) for path in (dataset / DATASET, model / MANIFEST)]
    return fingerprint([cfg, code], digests)


@contextmanager
def resumable_folder(folder: Path, key: str, noun: str = "window") -> Iterator[Journal]:
    """A folder for the body to fill, which has what a killed process with this key left there.

    A process of other code leaves nothing: the form of its rows may be another.

    If the body fails, the folder is removed, unless it is interrupted or a server is unreachable.

    Args:
        noun: the word for what has a line in the journal.

    Raises:
        UserError: if the disk is full.
    """
    path, first = folder / JOURNAL, f"{key} {code_digest()}"
    lines = _lines(path, first)
    if lines is None:
        if path.is_file():
            say(
                f"{folder.name}: starts over, since an earlier process that didn't end had other "
                "settings, inputs or code, or left damaged files"
            )
        (new_folder(folder) / JOURNAL).write_text(f"{first}\n")
    elif lines:
        plural = "s" * (len(lines) != 1)
        say(f"{folder.name}: continues after {len(lines):,} {noun}{plural} of an earlier process")
    journal = Journal(path, lines or [])
    try:
        with explain_full_disk(folder):
            yield journal
        path.unlink()
    except (*INTERRUPTIONS, UnreachableError):
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _lines(path: Path, first: str) -> list[dict[str, Any]] | None:
    """The lines of a journal behind this first one, if the folder's files bear them out, else None.

    A last line that isn't whole is cut off.
    """
    content = path.read_bytes() if path.is_file() else b""
    whole = content[: content.rfind(b"\n") + 1].splitlines()
    if whole[:1] != [first.encode()]:
        return None
    os.truncate(path, content.rfind(b"\n") + 1)
    lines: list[dict[str, Any]] = [*map(json.loads, whole[1:])]
    # The last line of each split has the largest ones.
    sizes = dict(chain.from_iterable(line["sizes"].items() for line in lines))
    files = {path.with_name(name): size for name, size in sizes.items()}
    is_whole = all(file.is_file() and file.stat().st_size >= files[file] for file in files)
    return lines if is_whole else None
