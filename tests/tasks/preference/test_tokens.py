"""Pairs of answers as rows."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conversations import CHATML
from transformers import PreTrainedTokenizerFast

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import Document
from moray.rows.store import Rows
from moray.tasks.language.encode import Encoder, make_encoder
from moray.tasks.language.pieces import Piece
from moray.tasks.language.rows import FIRST, TRAINED, PackedRows, Segment
from moray.tasks.preference.rows import REJECTED, as_sequences, num_pairs, with_reference
from moray.tasks.preference.task import make_pair_batch
from moray.tasks.preference.tokens import Pair, encode_pairs, pack_pairs


def texts(prompt: str, chosen: str, rejected: str) -> Document:
    return Document(prompt=prompt, chosen=chosen, rejected=rejected, tools=None)


def encoded(
    tokenizer: PreTrainedTokenizerFast, documents: list[Document], block_size: int, drop: bool
) -> tuple[list[Pair], int, int]:
    return encode_pairs(documents, 5, Encoder(tokenizer, block_size), drop, True)


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


def test_each_half_is_the_prompt_and_an_answer_with_its_stop(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    pairs, dropped, truncated = encoded(
        tokenizer, [texts("def f", "é = 1", "lambda"), texts("a", "b", "c")], 64, False
    )
    assert (len(pairs), dropped, truncated) == (2, 0, 0)
    opening = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    for piece, answer in ((pairs[0].chosen, "é = 1"), (pairs[0].rejected, "lambda")):
        before, behind = [*opening, *ids(tokenizer, "def f")], ids(tokenizer, answer)
        assert piece.tokens.tolist() == [*before, *behind, tokenizer.eos_token_id]
        assert piece.mask.tolist() == [False] * len(before) + [True] * (len(behind) + 1)
        assert piece.bytes == len(answer.encode())
    assert [pair.chosen.document for pair in pairs] == [5, 6]


def test_an_empty_prompt_leaves_an_answer_with_what_opens_it(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    (pair,), dropped, truncated = encoded(tokenizer, [texts("", "def f", "é = 1")], 64, False)
    assert (dropped, truncated) == (0, 0)
    opening = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    for piece, answer in ((pair.chosen, "def f"), (pair.rejected, "é = 1")):
        own = [*ids(tokenizer, answer), tokenizer.eos_token_id]
        assert piece.tokens.tolist() == [*opening, *own]
        assert piece.mask.tolist()[1:] == [True] * (len(opening) + len(own) - 1)


def test_a_long_pair_loses_the_beginning_of_its_prompt_then_the_ends_of_its_answers(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    prompt, chosen, rejected = "return " * 9, "yield " * 9, "import " * 3
    (whole,), _, _ = encoded(tokenizer, [texts(prompt, chosen, rejected)], 1000, False)
    length, context = len(whole.chosen.tokens), int(whole.chosen.mask.argmax())
    # Two tokens too long: both halves lose two of the prompt.
    (pair,), dropped, truncated = encoded(
        tokenizer, [texts(prompt, chosen, rejected)], 2 * (length - 2), False
    )
    assert (dropped, truncated) == (0, 1)
    for piece, before in ((pair.chosen, whole.chosen), (pair.rejected, whole.rejected)):
        np.testing.assert_array_equal(piece.tokens, before.tokens[2:])
        np.testing.assert_array_equal(piece.mask, before.mask[2:])
    # Far too long: the prompt keeps a quarter of a row, and the longer answer loses its end.
    size = context + 2
    assert length - size > context - size // 2
    (pair,), _, _ = encoded(tokenizer, [texts(prompt, chosen, rejected)], 2 * size, False)
    for piece, before in ((pair.chosen, whole.chosen), (pair.rejected, whole.rejected)):
        part = slice(context - size // 2, context - size // 2 + size)
        np.testing.assert_array_equal(piece.tokens, before.tokens[part])
        np.testing.assert_array_equal(piece.mask, before.mask[part])
        assert int(piece.mask.argmax()) == size // 2
    found, dropped, _ = encoded(tokenizer, [texts(prompt, chosen, rejected)], 2 * size, True)
    assert (found, dropped) == ([], 1)


def test_a_pair_that_truncation_makes_equal_is_dropped(tokenizer: PreTrainedTokenizerFast) -> None:
    same = "yield " * 20
    found = encoded(tokenizer, [texts("a", f"{same}1", f"{same}2")], 16, False)
    assert found == ([], 1, 0)


def test_of_conversations_only_the_answers_are_trained(chat_folder: Path) -> None:
    asked = {"role": "user", "content": "for?"}
    question = [asked, {"role": "assistant", "content": "hm", "weight": 0}, asked]
    answers = ({"role": "assistant", "content": text} for text in ("naïve", "lambda"))
    chosen, rejected = (json.dumps([*question, answer]) for answer in answers)
    document = Document(chosen=chosen, rejected=rejected, tools=None)
    cfg = {"format": "preference", **result_keys(Data(block_size=256, chat_template=CHATML))}
    encoder = make_encoder(chat_folder, cfg)
    (pair,), _, _ = encode_pairs([document], 0, encoder, False, True)
    for piece, answer in ((pair.chosen, "naïve"), (pair.rejected, "lambda")):
        trained = encoder.tokenizer.decode(piece.tokens[piece.mask], skip_special_tokens=False)
        assert trained.strip() == f"{answer}<|im_end|>"


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
def packed(pairs: list[Pair], packing: bool) -> PackedRows:
    return pack_pairs(pairs, BLOCK, TYPE, packing)


def test_a_rejected_piece_follows_its_chosen_one(
    packed: PackedRows, pairs: list[Pair], packing: bool
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


def rows_with_reference(packed: PackedRows) -> Rows:
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
    packed: PackedRows, packing: bool
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


def test_padding_has_no_pairs(packed: PackedRows, packing: bool) -> None:
    rows = np.zeros(3, rows_with_reference(packed).dtype)
    assert num_pairs(rows).tolist() == [0, 0, 0]
    batch = make_pair_batch(rows, packing)
    assert batch.reference.shape == (0, 2)
    assert batch.pieces.shape == batch.targets.shape == (0,)


def test_as_sequences_no_piece_sees_another_and_offsets_stay(
    packed: PackedRows, packing: bool
) -> None:
    rows: Any = as_sequences(packed.rows, packing)
    np.testing.assert_array_equal(rows["tokens"].ravel(), packed.rows["tokens"].ravel())
    np.testing.assert_array_equal(rows["flags"].ravel(), packed.rows["flags"].ravel())
    if not packing:
        assert ((rows["flags"] & FIRST != 0).sum(axis=1) == 1).all()
