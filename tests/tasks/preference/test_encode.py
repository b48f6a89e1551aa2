"""Pairs as pieces of at most half a row."""

import json
from pathlib import Path

import numpy as np
import pytest
from conversations import CHATML
from transformers import PreTrainedTokenizerFast

from moray.config.schema import Data, result_keys
from moray.corpus.dataset import Document
from moray.errors import UserError
from moray.tasks.language.encode import Encoder, make_encoder
from moray.tasks.preference.tokens import Pair, encode_pairs


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
    assert len(pairs[0]) == len(pairs[0].chosen.tokens) + len(pairs[0].rejected.tokens)


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


def test_conversations_without_a_template_cost_one_line(
    model_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    cfg = {"format": "preference", **result_keys(Data(block_size=64))}
    encoder = make_encoder(model_folder, cfg)
    assert encode_pairs([texts("a", "b", "c")], 0, encoder, False, False)[0]
    talk = json.dumps([{"role": "assistant", "content": "a"}])
    document = Document(chosen=talk, rejected=talk, tools=None)
    with pytest.raises(UserError, match=r"^data\.chat_template: is not set"):
        encode_pairs([document], 0, encoder, False, False)
