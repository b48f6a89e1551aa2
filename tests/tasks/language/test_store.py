"""The packed tokens of a split on disk."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moray.errors import UserError
from moray.provenance.manifest import write_manifest
from moray.rows.store import describe
from moray.tasks.language.encode import Piece
from moray.tasks.language.rows import Packed, Segment, StoredSplit, pack_rows, row_type
from moray.tasks.language.tokens import SplitWriter

BLOCK_SIZE = 16


def draw_windows(counts: list[int], vocabulary: int = 300) -> list[Packed]:
    """Windows of so many pieces each, of documents that are counted through."""
    random, dtype = np.random.default_rng(0), np.dtype("<u4" if vocabulary > 2**16 else "<u2")
    windows, document = [], 0
    for count in counts:
        pieces = []
        for _ in range(count):
            length = int(random.integers(2, BLOCK_SIZE + 1))
            mask = random.random(length) < 0.5
            mask[0] = False
            tokens = random.integers(vocabulary, size=length).astype(dtype)
            pieces.append(Piece(tokens, mask, document, int(random.integers(500))))
            document += 1
        packed = pack_rows(pieces, BLOCK_SIZE, dtype)
        windows.append(Packed(packed.rows, packed.segments, dropped=count % 3))
    return windows


def write(folder: Path, windows: list[Packed], keep_rows: bool = True) -> dict[str, Any]:
    with SplitWriter(folder, "train", BLOCK_SIZE, keep_rows) as writer:
        for window in windows:
            writer.add_window(window)
        facts = writer.facts()
    record = windows[0].rows.dtype if windows else row_type(BLOCK_SIZE, np.dtype("<u2"))
    described = describe(record)
    write_manifest(folder, block_size=BLOCK_SIZE, record=described, splits={"train": facts})
    return facts


COUNTS = [[1], [50], [20, 1, 30], [5, 0, 7, 0], [0]]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("vocabulary", [300, 2**32])
def test_a_split_is_its_windows_one_after_another(
    tmp_path: Path, counts: list[int], vocabulary: int
) -> None:
    windows = draw_windows(counts, vocabulary)
    write(tmp_path, windows)
    split, first = StoredSplit(tmp_path, "train"), 0
    assert split.block_size == BLOCK_SIZE
    assert split.windows == [len(window.rows) for window in windows]
    for window in windows:
        rows = split.rows[first : first + len(window.rows)]
        np.testing.assert_array_equal(rows, window.rows)
        assert rows.dtype == window.rows.dtype
        places = split.segments[:, Segment.START] // BLOCK_SIZE - first
        mine = np.array(split.segments[(places >= 0) & (places < len(rows))])
        mine[:, Segment.START] -= first * BLOCK_SIZE
        np.testing.assert_array_equal(mine, window.segments)
        first += len(rows)
    assert len(split) == first
    assert (np.diff(split.segments[:, Segment.START]) > 0).all()


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_counts_are_those_of_the_windows(tmp_path: Path, counts: list[int]) -> None:
    windows = draw_windows(counts)
    flags = [window.rows["flags"] for window in windows]
    expected = {
        "rows": sum(len(window.rows) for window in windows),
        "segments": sum(counts),
        "tokens": sum(int(window.segments[:, Segment.LENGTH].sum()) for window in windows),
        "weight": sum(int((flag & 1).sum()) for flag in flags),
        "dropped_documents": sum(count % 3 for count in counts),
        "windows": [len(window.rows) for window in windows],
    }
    for keep_rows in (False, True):
        assert write(tmp_path, windows, keep_rows) == expected, keep_rows


def test_rows_that_are_not_kept_leave_no_file(tmp_path: Path) -> None:
    write(tmp_path, draw_windows([20, 30]), keep_rows=False)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_the_same_windows_make_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, draw_windows([40, 60]))
        files = [(tmp_path / name / f"train.{kind}") for kind in ("rows", "segments")]
        digests.add(tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))
    assert len(digests) == 1


def test_a_split_without_windows_is_empty(tmp_path: Path) -> None:
    assert write(tmp_path, [])["windows"] == []
    split = StoredSplit(tmp_path, "train")
    assert (len(split), split.block_size, split.segments.shape) == (0, BLOCK_SIZE, (0, 4))


def test_a_split_is_read_only(tmp_path: Path) -> None:
    write(tmp_path, draw_windows([5]))
    split = StoredSplit(tmp_path, "train")
    for array in (split.rows["tokens"], split.rows["flags"], split.segments):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


@pytest.mark.parametrize("kind", ["rows", "segments"])
@pytest.mark.parametrize("change", ["truncated", "missing"])
def test_a_damaged_file_is_named(tmp_path: Path, kind: str, change: str) -> None:
    write(tmp_path, draw_windows([20]))
    path = tmp_path / f"train.{kind}"
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(UserError) as caught:
        StoredSplit(tmp_path, "train")
    assert str(caught.value).startswith(f"{path}: got ")
