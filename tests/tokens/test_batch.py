"""Rows of a store as the tensors that a model takes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from moray.provenance.manifest import write_manifest
from moray.tokens.batch import IGNORED, make_batch, num_trained
from moray.tokens.encode import Piece
from moray.tokens.store import Split, SplitWriter


def brute_force(split: Split, row: int) -> tuple[list[int], list[int]]:
    """Positions and labels of a row, place by place."""
    segments = [(s, s + length) for s, length, _, _ in split.segments_of(row).tolist()]
    padding = (segments[-1][1], split.block_size)
    positions, labels = [], []
    for place in range(split.block_size):
        start, end = next((s, e) for s, e in [*segments, padding] if s <= place < e)
        positions.append(place - start)
        trained = place + 1 < end and split.mask[row, place + 1]
        labels.append(int(split.tokens[row, place + 1]) if trained else IGNORED)
    return positions, labels


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_positions_and_labels_are_those_of_each_document_alone(store: Path, name: str) -> None:
    split = Split(store, name)
    batch = make_batch(split, np.arange(len(split)))
    assert batch.input_ids.tolist() == np.array(split.tokens).tolist()
    for row in range(len(split)):
        positions, labels = brute_force(split, row)
        assert batch.position_ids[row].tolist() == positions
        assert batch.labels[row].tolist() == labels


@pytest.fixture
def small(tmp_path: Path) -> Split:
    """A row of two documents and padding, and a full row."""
    trained = [np.array([False, *[True] * length]) for length in (2, 1, 7)]
    tokens = [np.array(ids) for ids in ([10, 11, 12], [20, 21], range(30, 38))]
    with SplitWriter(tmp_path, "train", 8, 300) as writer:
        writer.add(Piece(t, m, i, 1) for i, (t, m) in enumerate(zip(tokens, trained, strict=True)))
        counts = writer.finish()
    write_manifest(tmp_path, block_size=8, dtype=writer.dtype.str, splits={"train": counts})
    return Split(tmp_path, "train")


def test_a_row_spelt_out(small: Split) -> None:
    batch = make_batch(small, np.array([1, 0]))
    x = IGNORED
    assert batch.input_ids.tolist() == [[10, 11, 12, 20, 21, 0, 0, 0], [*range(30, 38)]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2], [*range(8)]]
    assert batch.labels.tolist() == [[11, 12, x, 21, x, x, x, x], [*range(31, 38), x]]


def test_rows_come_in_the_order_asked_for_and_as_often(small: Split) -> None:
    first, second = (make_batch(small, np.array([row])) for row in (0, 1))
    batch = make_batch(small, np.array([1, 0, 1]))
    for name in ("input_ids", "position_ids", "labels"):
        expected = [getattr(one, name)[0].tolist() for one in (second, first, second)]
        assert getattr(batch, name).tolist() == expected


def test_trained_tokens_are_as_many_as_labels(store: Path) -> None:
    split = Split(store, "train")
    for rows in (np.arange(len(split)), np.array([0]), np.array([1, 1, 0])):
        labels = make_batch(split, rows).labels
        assert num_trained(split, rows) == int((labels != IGNORED).sum())


def test_a_batch_moves_as_a_whole(small: Split) -> None:
    moved = make_batch(small, np.array([0])).to(torch.device("meta"))
    assert {t.device.type for t in (moved.input_ids, moved.position_ids, moved.labels)} == {"meta"}
