"""Pairs side by side in rows, and in batches."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from moray.rows.store import Rows
from moray.tasks.language.encode import Piece
from moray.tasks.language.rows import FIRST, TRAINED, Packed, Segment
from moray.tasks.preference.loss import make_pair_batch
from moray.tasks.preference.rows import REJECTED, as_sequences, num_pairs, with_reference
from moray.tasks.preference.tokens import Pair, pack_pairs

BLOCK = 16
TYPE = np.dtype("<u2")


def piece(document: int, length: int, first_token: int) -> Piece:
    tokens = np.arange(first_token, first_token + length, dtype=TYPE)
    mask = np.arange(length) >= length // 2
    mask[0] = False
    return Piece(tokens, mask, document, length)


@pytest.fixture(params=[True, False], ids=["packed", "not packed"])
def packing(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def pairs() -> list[Pair]:
    """Of 4 to 16 tokens, with tokens that say where they belong."""
    lengths = [(3, 2), (8, 8), (2, 2), (5, 4), (2, 7), (3, 3)]
    return [
        Pair(piece(number, chosen, 100 * number + 10), piece(number, rejected, 100 * number + 50))
        for number, (chosen, rejected) in enumerate(lengths)
    ]


@pytest.fixture
def packed(pairs: list[Pair], packing: bool) -> Packed:
    return pack_pairs(pairs, BLOCK, TYPE, packing)


def test_a_rejected_piece_follows_its_chosen_one(
    packed: Packed, pairs: list[Pair], packing: bool
) -> None:
    tokens, flags = packed.rows["tokens"].ravel(), packed.rows["flags"].ravel()
    assert len(packed.rows) == (4 if packing else len(pairs))
    assert (np.diff(packed.segments[:, Segment.START]) > 0).all()
    found = packed.segments.reshape(-1, 2, len(Segment)).tolist()
    assert sorted(first[Segment.DOCUMENT] for first, _ in found) == list(range(len(pairs)))
    for segments in found:
        document = segments[0][Segment.DOCUMENT]
        assert segments[0][Segment.START] // BLOCK == segments[1][Segment.START] // BLOCK
        if packing:
            assert segments[1][Segment.START] == sum(segments[0][:2])
        for (start, length, number, size), whole, kind in zip(
            segments, (pairs[document].chosen, pairs[document].rejected), (0, REJECTED), strict=True
        ):
            assert (number, size) == (document, whole.bytes)
            part = slice(start, start + length)
            np.testing.assert_array_equal(tokens[part], whole.tokens)
            np.testing.assert_array_equal(flags[part] & TRAINED, whole.mask)
            assert set(flags[part] & REJECTED) == {kind}
            assert flags[start] & FIRST
    assert num_pairs(packed.rows).sum() == len(pairs)


def test_no_pairs_make_no_rows(packing: bool) -> None:
    packed = pack_pairs([], BLOCK, TYPE, packing)
    assert (packed.rows.shape, packed.segments.shape) == ((0,), (0, len(Segment)))


def rows_with_reference(packed: Packed) -> Rows:
    """With minus the document's number for the chosen answer, and half less for the rejected."""
    most = int(num_pairs(packed.rows).max())
    rows = np.zeros(len(packed.rows), with_reference(packed.rows.dtype, most))
    for field in ("tokens", "flags"):
        rows[field] = packed.rows[field]
    documents = packed.segments[::2, Segment.DOCUMENT]
    row_of = packed.segments[::2, Segment.START] // BLOCK
    for row in range(len(rows)):
        mine = -documents[row_of == row].astype(np.float32)
        rows["reference"][row, : len(mine)] = np.stack([mine, mine - 0.5], axis=1)
    return rows


def test_a_batch_knows_each_token_s_piece_and_each_pair_s_reference(
    packed: Packed, packing: bool
) -> None:
    rows = np.concatenate(
        [rows_with_reference(packed), np.zeros(2, rows_with_reference(packed).dtype)]
    )
    batch = make_pair_batch(rows, packing)
    flat = batch.input_ids.ravel()
    assert (flat[batch.target_indices + 1] == batch.targets).all()
    documents = packed.segments[::2, Segment.DOCUMENT]
    assert batch.reference.tolist() == [[-number, -number - 0.5] for number in documents.tolist()]
    # Tokens say which document and half they are of.
    expected = torch.searchsorted(torch.arange(len(documents)), batch.pieces // 2)
    assert batch.targets.div(100, rounding_mode="floor").tolist() == documents[expected].tolist()
    assert (batch.targets % 100 >= 50).tolist() == (batch.pieces % 2 == 1).tolist()
    assert batch.input_ids.shape[1] == (BLOCK if packing else BLOCK // 2)
    moved = batch.to(torch.device("meta"))
    assert all(getattr(moved, field.name).device.type == "meta" for field in fields(batch))


def test_padding_has_no_pairs(packed: Packed, packing: bool) -> None:
    rows = np.zeros(3, rows_with_reference(packed).dtype)
    assert num_pairs(rows).tolist() == [0, 0, 0]
    batch = make_pair_batch(rows, packing)
    assert batch.reference.shape == (0, 2)
    assert batch.pieces.shape == batch.targets.shape == (0,)


def test_as_sequences_no_piece_sees_another_and_offsets_stay(packed: Packed, packing: bool) -> None:
    rows: Any = as_sequences(packed.rows, packing)
    np.testing.assert_array_equal(rows["tokens"].ravel(), packed.rows["tokens"].ravel())
    np.testing.assert_array_equal(rows["flags"].ravel(), packed.rows["flags"].ravel())
    if not packing:
        assert ((rows["flags"] & FIRST != 0).sum(axis=1) == 1).all()
