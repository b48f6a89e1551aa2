"""Rows of a store as the tensors that a model takes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from packed import pieces_of

from moray.tokens.batch import IGNORED, make_batch, num_trained
from moray.tokens.encode import Piece
from moray.tokens.rows import Rows, pack_rows
from moray.tokens.store import Split


def brute_force(split: Split, row: int) -> tuple[list[int], list[int]]:
    """Positions and labels of a row, piece by piece."""
    positions: list[int] = []
    labels: list[int] = []
    for piece in pieces_of(split, row):
        positions += range(len(piece.tokens))
        following = zip(piece.tokens[1:].tolist(), piece.mask[1:].tolist(), strict=True)
        labels += [token if trained else IGNORED for token, trained in following]
        labels.append(IGNORED)
    padding = split.block_size - len(positions)
    return [*positions, *range(padding)], labels + [IGNORED] * padding


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_positions_and_labels_are_those_of_each_document_alone(store: Path, name: str) -> None:
    split = Split(store, name)
    batch = make_batch(split.rows)
    assert batch.input_ids.tolist() == split.rows["tokens"].tolist()
    for row in range(len(split)):
        positions, labels = brute_force(split, row)
        assert batch.position_ids[row].tolist() == positions
        assert batch.labels[row].tolist() == labels


@pytest.fixture
def rows() -> Rows:
    """A full row, and one of two documents and padding."""
    trained = [np.array([False, *[True] * length]) for length in (2, 1, 7)]
    tokens = [np.array(ids) for ids in ([10, 11, 12], [20, 21], range(30, 38))]
    pieces = [Piece(t, m, i, 1) for i, (t, m) in enumerate(zip(tokens, trained, strict=True))]
    return pack_rows(pieces, 8, np.dtype("<u2")).rows


def test_a_row_spelt_out(rows: Rows) -> None:
    batch = make_batch(rows[[1, 0]])
    x = IGNORED
    assert batch.input_ids.tolist() == [[10, 11, 12, 20, 21, 0, 0, 0], [*range(30, 38)]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2], [*range(8)]]
    assert batch.labels.tolist() == [[11, 12, x, 21, x, x, x, x], [*range(31, 38), x]]


def test_trained_tokens_are_as_many_as_labels(store: Path) -> None:
    split = Split(store, "train")
    for chosen in (np.arange(len(split)), np.array([0]), np.array([1, 1, 0])):
        labels = make_batch(split.rows[chosen]).labels
        assert num_trained(split.rows[chosen]) == int((labels != IGNORED).sum())


def test_a_batch_moves_as_a_whole(rows: Rows) -> None:
    moved = make_batch(rows).to(torch.device("meta"))
    assert {t.device.type for t in (moved.input_ids, moved.position_ids, moved.labels)} == {"meta"}
