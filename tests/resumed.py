"""Stages that are interrupted while they write a store or compute batches, and called again."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from moray.corpus.dataset import SPLITS
from moray.evaluate.batches import Arrays, Batch, BatchWriter
from moray.provenance.manifest import JOURNAL, damaged_files, read_manifest
from moray.rows.store import RowsWriter


def in_small_groups(dataset: Path, folder: Path, size: int) -> Path:
    """A copy of a dataset with row groups of so many rows."""
    folder.mkdir()
    for split in SPLITS:
        table = pq.read_table(dataset / f"{split}.parquet")
        pq.write_table(table, folder / f"{split}.parquet", row_group_size=size)
    (folder / "dataset.json").write_bytes((dataset / "dataset.json").read_bytes())
    return folder


def check_resumption(
    stage: Callable[[Path], None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store is the same if the stage that writes it to a folder is interrupted at any window."""
    whole = folder / "whole"
    capsys.readouterr()
    stage(whole)
    total = sum(len(split["windows"]) for split in read_manifest(whole)["splits"].values())
    assert total > 5
    of_all = _lines(capsys, whole)
    for number in range(1, total):
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch, number)
            with pytest.raises(KeyboardInterrupt):
                stage(folder / str(number))
        assert (folder / str(number) / JOURNAL).is_file()
        capsys.readouterr()
        stage(folder / str(number))
        first, *lines = _lines(capsys, folder / str(number))
        assert first.startswith(f"STORE: continues after {number} window")
        assert lines == of_all, (lines, of_all)
        assert read_manifest(folder / str(number)) == read_manifest(whole)
        assert not damaged_files(folder / str(number))
        assert {path.name for path in (folder / str(number)).iterdir()} == {
            path.name for path in whole.iterdir()
        }


def _lines(capsys: pytest.CaptureFixture[str], store: Path) -> list[str]:
    """What was said since the last call, without the name of the store."""
    return re.sub(rf"\b{store.name}:", "STORE:", capsys.readouterr().err).splitlines()


def interrupt(patch: pytest.MonkeyPatch, windows: int) -> None:
    """Interrupt this process as Ctrl-C does, after so many windows."""
    add, written = RowsWriter.add, 0

    def counted(self: RowsWriter, *arguments: Any, **keywords: Any) -> None:
        nonlocal written
        if written == windows:
            raise KeyboardInterrupt
        add(self, *arguments, **keywords)
        written += 1

    patch.setattr(RowsWriter, "add", counted)


def check_batches_resumption(
    stage: Callable[[Path], None], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a stage writes to a folder is the same if it is interrupted after some batches.

    None of them is computed again.
    """
    # Results may have its name.
    own = folder / "own"
    own.mkdir()
    with _counted_batches() as added:
        stage(own)
    total, whole = len(added), _contents(own)
    assert total >= 4
    for number in sorted({1, total // 2, total - 1}):
        shutil.rmtree(own)
        own.mkdir()
        with interrupted_after(number):
            stage(own)
        assert any(path.name.startswith(".batches-") for path in own.rglob("*"))
        capfd.readouterr()
        with _counted_batches() as rest:
            stage(own)
        assert {*rest} | {*added[:number]} == {*added}
        assert len(rest) == total - number
        plural = "es" * (number > 1)
        line = f": continues after {number} batch{plural} of an earlier process\n"
        assert line in capfd.readouterr().err
        assert _contents(own) == whole


@contextmanager
def interrupted_after(count: int) -> Iterator[None]:
    """Interrupt the body as Ctrl-C does, after so many batches."""
    add, added = BatchWriter.add, 0

    def counted(self: BatchWriter, batch: Batch, arrays: Arrays) -> None:
        nonlocal added
        if added == count:
            raise KeyboardInterrupt
        add(self, batch, arrays)
        added += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchWriter, "add", counted)
        with pytest.raises(KeyboardInterrupt):
            yield


@contextmanager
def _counted_batches() -> Iterator[list[Batch]]:
    """The batches that are computed in the body."""
    add, added = BatchWriter.add, list[Batch]()

    def counted(self: BatchWriter, batch: Batch, arrays: Arrays) -> None:
        add(self, batch, arrays)
        added.append(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchWriter, "add", counted)
        yield added


def _contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, hidden ones too."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
