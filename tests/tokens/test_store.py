"""The packed tokens of a split on disk."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from moray.errors import UserError
from moray.provenance.manifest import write_manifest
from moray.tokens.encode import Piece
from moray.tokens.store import Segment, Split, SplitWriter


def draw_pieces(count: int, block_size: int, vocab_size: int) -> list[Piece]:
    random = np.random.default_rng(0)
    pieces = []
    for number in range(count):
        length = int(random.integers(2, block_size + 1))
        mask = random.random(length) < 0.5
        mask[0] = False
        tokens = random.integers(vocab_size, size=length)
        pieces.append(Piece(tokens, mask, number // 3, int(random.integers(500))))
    return pieces


def write(folder: Path, pieces: list[Piece], block_size: int, vocab_size: int) -> dict[str, int]:
    with SplitWriter(folder, "train", block_size, vocab_size) as writer:
        writer.add(pieces[:5])
        writer.add(iter(pieces[5:]))
        counts = writer.finish()
    write_manifest(folder, block_size=block_size, dtype=writer.dtype.str, splits={"train": counts})
    return counts


def as_tuple(piece: Piece) -> tuple[object, ...]:
    return piece.document, piece.bytes, piece.tokens.tolist(), piece.mask.tolist()


def read_back(split: Split) -> list[tuple[object, ...]]:
    """All pieces of a split, and a check that what lies between them is empty."""
    found: list[tuple[object, ...]] = []
    for row in range(len(split)):
        place = 0
        for start, length, document, size in split.segments_of(row).tolist():
            assert start == place, "segments of a row lie side by side"
            place = start + length
            tokens, mask = (a[row, start:place] for a in (split.tokens, split.mask))
            found.append((document, size, tokens.tolist(), mask.astype(bool).tolist()))
        assert place <= split.block_size
        assert not split.mask[row, place:].any(), "padding is not trained"
    return found


# 9,000 pieces don't fit into one window of the writer.
@pytest.mark.parametrize(
    ("count", "block_size", "vocab_size"),
    [(1, 8, 300), (50, 16, 300), (50, 16, 2**16), (50, 16, 2**16 + 1), (9_000, 8, 300)],
)
def test_pieces_come_back_as_they_went_in(
    tmp_path: Path, count: int, block_size: int, vocab_size: int
) -> None:
    pieces = draw_pieces(count, block_size, vocab_size)
    write(tmp_path, pieces, block_size, vocab_size)
    found = read_back(Split(tmp_path, "train"))
    assert sorted(found, key=repr) == sorted(map(as_tuple, pieces), key=repr)


def test_counts_are_those_of_the_pieces(tmp_path: Path) -> None:
    pieces = draw_pieces(100, 16, 300)
    counts = write(tmp_path, pieces, 16, 300)
    assert counts == {
        "rows": len(Split(tmp_path, "train")),
        "segments": 100,
        "tokens": sum(len(piece.tokens) for piece in pieces),
        "trained_tokens": sum(int(piece.mask.sum()) for piece in pieces),
    }


@pytest.mark.parametrize(("vocab_size", "width"), [(300, 2), (2**16, 2), (2**16 + 1, 4)])
def test_tokens_take_two_bytes_where_the_vocabulary_lets_them(
    tmp_path: Path, vocab_size: int, width: int
) -> None:
    tokens = np.array([0, vocab_size - 1])
    write(tmp_path, [Piece(tokens, np.array([False, True]), 0, 1)], 8, vocab_size)
    assert (tmp_path / "train.tokens").stat().st_size == 8 * width
    assert Split(tmp_path, "train").tokens[0, :2].tolist() == tokens.tolist()


def test_segments_of_a_row_are_those_that_start_in_it(tmp_path: Path) -> None:
    write(tmp_path, draw_pieces(200, 16, 300), 16, 300)
    split = Split(tmp_path, "train")
    starts = split.segments[:, Segment.START]
    assert (np.diff(starts) > 0).all()
    for row in range(len(split)):
        expected = np.array(split.segments[starts // 16 == row])
        expected[:, Segment.START] %= 16
        assert np.array_equal(split.segments_of(row), expected)


def test_the_same_pieces_make_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, draw_pieces(100, 16, 300), 16, 300)
        digests.add(
            tuple(
                hashlib.sha256((tmp_path / name / f"train.{kind}").read_bytes()).hexdigest()
                for kind in ("tokens", "mask", "segments")
            )
        )
    assert len(digests) == 1


def test_a_split_without_pieces_is_empty(tmp_path: Path) -> None:
    counts = write(tmp_path, [], 16, 300)
    split = Split(tmp_path, "train")
    assert counts == {"rows": 0, "segments": 0, "tokens": 0, "trained_tokens": 0}
    assert (len(split), split.block_size, split.segments.shape) == (0, 16, (0, 4))


def test_a_split_is_read_only(tmp_path: Path) -> None:
    write(tmp_path, draw_pieces(5, 16, 300), 16, 300)
    split = Split(tmp_path, "train")
    for array in (split.tokens, split.mask, split.segments):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


@pytest.mark.parametrize("kind", ["tokens", "mask", "segments"])
@pytest.mark.parametrize("change", ["truncated", "missing"])
def test_a_damaged_file_is_named(tmp_path: Path, kind: str, change: str) -> None:
    write(tmp_path, draw_pieces(20, 16, 300), 16, 300)
    path = tmp_path / f"train.{kind}"
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(UserError) as caught:
        Split(tmp_path, "train")
    assert str(caught.value).startswith(f"{path}: got ")
