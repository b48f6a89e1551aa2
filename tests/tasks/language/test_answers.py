"""A row of its own for each answer of a conversation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversations import TALKS, conversation
from small_model import recipe
from stock_table import stock
from turn_templates import DEEPSEEK

from moray.corpus.dataset import SPLITS, Document, messages_of
from moray.corpus.documents import write_dataset
from moray.errors import UserError
from moray.proofs.comparison import read_proof
from moray.provenance.manifest import read_manifest
from moray.tasks.language.answers import answer_alone, trained_answers
from moray.tasks.language.rows import StoredSplit, is_trained
from moray.tasks.language.tokenize import tokenize
from moray.tasks.language.tokenizer import load_tokenizer
from moray.train.task import task_of

QWEN3 = stock("qwen3")
Row = tuple[tuple[int, ...], tuple[bool, ...]]
# Reasoning in each answer, one that isn't trained, and calls of a tool.
THOUGHTS = conversation(
    ("user", "Two?"),
    ("assistant", "<think>\none and one\n</think>\n\n2"),
    ("user", "Three?"),
    {"role": "assistant", "content": "33", "weight": 0},
    ("user", "No, three?"),
    ("assistant", "<think>\ntwo and one\n</think>\n\n3"),
    ("user", "Bye."),
)
ROWS = [THOUGHTS, *TALKS]


def by_hand(document: Document) -> list[Document]:
    """Conversations that end in one trained answer each."""
    messages = messages_of(document)
    rows = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        part = [
            one | ({"weight": 0} if one["role"] == "assistant" else {}) for one in messages[:number]
        ]
        text = json.dumps([*part, message], ensure_ascii=False)
        rows.append(Document(messages=text, tools=document["tools"]))
    return rows


def store(folder: Path, model: Path, rows: list[Document], **keys: Any) -> Path:
    """The tokens of rows, the same in each split."""
    write_dataset(
        folder / "data", ((split, row) for split in SPLITS for row in rows), "messages", {}
    )
    cfg = recipe("messages", **{"block_size": 2048, "chat_template": QWEN3} | keys)
    tokenize(folder / "data", model, folder / "tokens", cfg)
    return folder / "tokens"


def pieces(tokens: Path, split: str) -> list[tuple[int, Row]]:
    """The document of each piece, its tokens, and which of them are trained."""
    stored = StoredSplit(tokens, split)
    flat, trained = stored.rows["tokens"].reshape(-1), is_trained(stored.rows).reshape(-1)
    return [
        (document, (tuple(flat[start : start + length]), tuple(trained[start : start + length])))
        for start, length, document, _ in stored.segments.tolist()
    ]


@pytest.mark.parametrize("template", [QWEN3, stock("qwen3_5"), stock("qwen2_5")])
def test_the_rows_of_each_answer_are_those_made_by_hand(
    tmp_path: Path, chat_folder: Path, template: str
) -> None:
    folders = [tmp_path / name for name in ("each", "hand")]
    each = store(folders[0], chat_folder, ROWS, chat_template=template, turns="each")
    rows = [one for row in ROWS for one in by_hand(row)]
    hand = store(folders[1], chat_folder, rows, chat_template=template)
    for split in SPLITS:
        found = pieces(each, split)
        assert {row for _, row in found} == {row for _, row in pieces(hand, split)}
        # All of a conversation are one document, which is what intervals resample.
        counts = np.bincount([document for document, _ in found]).tolist()
        assert counts == [len(by_hand(row)) for row in ROWS]
    facts = read_manifest(each)["splits"]["test"]
    assert "earlier" not in facts["chat_template"]
    assert facts["chat_template"]["answers"] == sum(map(len, map(by_hand, ROWS)))


def test_the_reasoning_of_every_answer_is_trained(tmp_path: Path, chat_folder: Path) -> None:
    tokenizer = load_tokenizer(chat_folder)
    texts = {}
    with pytest.raises(UserError, match=r"of message 6, .*; set data\.turns: each, set a data"):
        store(tmp_path, chat_folder, [THOUGHTS])
    ending = Document(messages=json.dumps(messages_of(THOUGHTS)[:-1]), tools=None)
    for turns, row in (("together", ending), ("each", THOUGHTS)):
        tokens = store(tmp_path / turns, chat_folder, [row], turns=turns)
        texts[turns] = {
            tokenizer.decode([one for one, trained in zip(*row, strict=True) if trained])
            for _, row in pieces(tokens, "train")
        }
    thoughts = [messages_of(THOUGHTS)[number]["content"] for number in (1, 5)]
    assert texts["each"] == {f"{thought}<|im_end|>" for thought in thoughts}
    assert texts["together"] == {f"2<|im_end|>{thoughts[1]}<|im_end|>"}


def test_only_the_last_answer_has_a_row_without_the_history(
    tmp_path: Path, chat_folder: Path
) -> None:
    tokens = store(tmp_path, chat_folder, ROWS, turns="each", mask_history=True)
    found = {row for _, row in pieces(tokens, "test")}
    last = store(tmp_path / "last", chat_folder, [by_hand(row)[-1] for row in ROWS])
    assert found == {row for _, row in pieces(last, "test")}


def test_rows_are_the_same_where_they_are_made_during_training(
    tmp_path: Path, chat_folder: Path
) -> None:
    stored = store(tmp_path / "ahead", chat_folder, ROWS, turns="each", block_size=64)
    keys = {"tokenize": "on-the-fly", "loader": "stream", "block_size": 64}
    made = store(tmp_path / "fly", chat_folder, ROWS, turns="each", **keys)
    (window,) = (task_of(made, {}).window_reader(made, str(made))(0),)
    np.testing.assert_array_equal(window, StoredSplit(stored, "train").rows)


def test_an_answer_that_loses_its_reasoning_is_refused_wherever_it_is(
    tmp_path: Path, chat_folder: Path
) -> None:
    later = conversation(
        ("user", "2?"), ("assistant", "<think>\nHm.\n</think>\n\n2"), ("user", "3?"),
        ("assistant", "3"),
    )  # fmt: skip
    assert store(tmp_path / "together", chat_folder, [later], chat_template=DEEPSEEK)
    with pytest.raises(UserError, match=r"leaves out '<think>.* of message 2, the last that is"):
        store(tmp_path / "each", chat_folder, [later], turns="each", chat_template=DEEPSEEK)


def test_the_rows_are_compared_with_the_template_alone(tmp_path: Path, chat_folder: Path) -> None:
    rows = [conversation(("user", "é"), ("assistant", "1"), ("user", "ü"), ("assistant", "2"))]
    block = "<think>\n\n</think>\n\n"
    for name, keys, what in (
        ("plain", {}, "not trained"),
        ("trained", {"train_template_text": True}, "trained with it"),
    ):
        tokens = store(tmp_path / name, chat_folder, rows, turns="each", **keys)
        proof = {one["what"]: one for one in read_proof(tokens)}
        assert all(one["holds"] for one in proof.values())
        assert proof["tokens of documents"]["rows"] == 2
        named = proof[f"text that the chat template puts before an answer, {what}"]
        assert (named["here"], named["plain"]) == (block, block)


def test_an_answer_alone_ends_its_conversation() -> None:
    assert trained_answers(messages_of(THOUGHTS)) == [1, 5]
    assert [answer_alone(THOUGHTS, number) for number in (1, 5)] == by_hand(THOUGHTS)
    assert messages_of(THOUGHTS)[1].get("weight") is None
