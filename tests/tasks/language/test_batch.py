"""Rows of a store as the tensors that a model takes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from packed import pieces_of

from moray.rows.store import Rows
from moray.tasks.language.encode import Piece
from moray.tasks.language.loss import make_batch
from moray.tasks.language.rows import StoredSplit, num_trained, pack_rows


def brute_force(split: StoredSplit, row: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Positions of a row, and its trained next tokens by where they follow, piece by piece."""
    positions: list[int] = []
    trained: list[tuple[int, int]] = []
    for piece in pieces_of(split, row):
        for place in range(1, len(piece.tokens)):
            if piece.mask[place]:
                trained.append((len(positions) + place - 1, int(piece.tokens[place])))
        positions += range(len(piece.tokens))
    return [*positions, *range(split.block_size - len(positions))], trained


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_positions_and_targets_are_those_of_each_document_alone(store: Path, name: str) -> None:
    split = StoredSplit(store, name)
    batch = make_batch(split.rows)
    assert batch.input_ids.tolist() == split.rows["tokens"].tolist()
    expected: list[tuple[int, int]] = []
    for row in range(len(split)):
        positions, trained = brute_force(split, row)
        assert batch.position_ids[row].tolist() == positions
        expected += [(row * split.block_size + place, token) for place, token in trained]
    assert expected
    found = zip(batch.target_indices.tolist(), batch.targets.tolist(), strict=True)
    assert list(found) == expected


@pytest.fixture
def rows() -> Rows:
    """A full row, and one of two documents and padding."""
    trained = [np.array([False, *[True] * length]) for length in (2, 1, 7)]
    tokens = [np.array(ids) for ids in ([10, 11, 12], [20, 21], range(30, 38))]
    pieces = [Piece(t, m, i, 1) for i, (t, m) in enumerate(zip(tokens, trained, strict=True))]
    return pack_rows(pieces, 8, np.dtype("<u2")).rows


def test_a_row_spelt_out(rows: Rows) -> None:
    batch = make_batch(rows[[1, 0]])
    assert batch.input_ids.tolist() == [[10, 11, 12, 20, 21, 0, 0, 0], [*range(30, 38)]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2], [*range(8)]]
    assert batch.target_indices.tolist() == [0, 1, 3, *range(8, 15)]
    assert batch.targets.tolist() == [11, 12, 21, *range(31, 38)]


def test_trained_tokens_are_as_many_as_targets(store: Path) -> None:
    split = StoredSplit(store, "train")
    for chosen in (np.arange(len(split)), np.array([0]), np.array([1, 1, 0])):
        batch = make_batch(split.rows[chosen])
        assert (
            num_trained(split.rows[chosen]) == len(batch.targets) == len(batch.target_indices) > 0
        )


def test_a_batch_moves_as_a_whole(rows: Rows) -> None:
    moved = make_batch(rows).to(torch.device("meta"))
    assert {tensor.device.type for tensor in vars(moved).values()} == {"meta"}
