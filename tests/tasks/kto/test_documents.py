"""Rows with an answer that is good or bad, as documents."""

import json
from typing import Any

import pytest

from moray.config.tasks import FormatName
from moray.corpus.dataset import (
    Document,
    RowError,
    answers_of,
    content,
    group_of,
    plain_text,
)
from moray.tasks.kto.documents import prompt_of, reply_of, with_answer_of
from moray.tasks.language.formats import Shape, document

FORMAT: FormatName = "unpaired-preference"
ASKED = {"role": "user", "content": "é?"}
SAID = {"role": "assistant", "content": "hm"}
REPLY = {"role": "assistant", "content": "b"}


def talk(*messages: Any, label: bool = True) -> Document:
    spoken = json.dumps(messages, ensure_ascii=False)
    return Document(completion=spoken, tools=None, label=label)


UNTRAINED = {**SAID, "weight": 0}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"prompt": "a\n", "completion": " b", "label": True},
            Document(prompt="a\n", completion=" b", tools=None, label=True),
        ),
        (
            {"prompt": [ASKED], "completion": [REPLY], "label": False},
            talk(ASKED, REPLY, label=False),
        ),
        ({"prompt": [ASKED], "completion": REPLY, "label": True}, talk(ASKED, REPLY)),
        (
            {"prompt": [ASKED, SAID, ASKED], "completion": [REPLY], "label": True},
            talk(ASKED, UNTRAINED, ASKED, REPLY),
        ),
        (
            {"messages": [ASKED, SAID, ASKED, REPLY], "label": True},
            talk(ASKED, UNTRAINED, ASKED, REPLY),
        ),
        (
            {"conversations": [{"from": "human", "value": "é?"}, {"from": "gpt", "value": "b"}]}
            | {"label": True},
            talk(ASKED, REPLY),
        ),
        (
            {"messages": [ASKED, REPLY], "label": True, "system": "S"},
            talk({"role": "system", "content": "S"}, ASKED, REPLY),
        ),
    ],
)
def test_a_row_is_text_or_messages(row: dict[str, Any], expected: Document) -> None:
    assert document(row, Shape(FORMAT)) == expected
    renamed = {f"my {name}": value for name, value in row.items()}
    if "conversations" not in row:
        shape = Shape(FORMAT, {name: f"my {name}" for name in row})
        assert document(renamed, shape) == expected


def test_a_column_of_whole_conversations_may_be_called_completion() -> None:
    """As in argilla/kto-mix-15k."""
    row = {"completion": [ASKED, REPLY], "label": True}
    assert document(row, Shape(FORMAT, {"messages": "completion"})) == talk(ASKED, REPLY)


@pytest.mark.parametrize("prompt", [None, "", " ", [], "é?", [ASKED]])
def test_messages_may_repeat_their_prompt(prompt: Any) -> None:
    row = {"prompt": prompt, "messages": [ASKED, REPLY], "label": True}
    assert document(row, Shape(FORMAT)) == talk(ASKED, REPLY)
    as_json = {**row, "messages": json.dumps(row["messages"])}
    assert document(as_json, Shape(FORMAT)) == talk(ASKED, REPLY)


def test_messages_go_on_with_a_prompt_of_messages() -> None:
    """As trl-lib/kto-mix-14k is with columns of argilla/kto-mix-15k."""
    row = {"prompt": [ASKED, SAID, ASKED], "completion": [REPLY], "label": False}
    expected = talk(ASKED, UNTRAINED, ASKED, REPLY, label=False)
    assert document(row, Shape(FORMAT, {"messages": "completion"})) == expected
    assert document(row, Shape(FORMAT)) == expected


def test_the_column_of_llama_factory_is_suggested_and_works() -> None:
    row = {"messages": [ASKED, REPLY], "kto_tag": False}
    with pytest.raises(RowError) as caught:
        document(row, Shape(FORMAT))
    assert caught.value.problem == "got columns messages, kto_tag, expected label"
    assert caught.value.remedy == "set columns: {label: kto_tag}"
    assert document(row, Shape(FORMAT, {"label": "kto_tag"})) == talk(ASKED, REPLY, label=False)


def test_a_column_that_is_read_under_another_name_is_read_once() -> None:
    row = {"messages": [ASKED], "completion": [REPLY], "label": True}
    assert document(row, Shape(FORMAT, {"prompt": "messages"})) == talk(ASKED, REPLY)
    row = {"messages": [ASKED, REPLY], "completion": "b", "label": True}
    assert document(row, Shape(FORMAT, {"messages": "messages"})) == talk(ASKED, REPLY)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        *((value, True) for value in (True, 1, 1.0, "true", "True", "TRUE", " 1", "1")),
        *((value, False) for value in (False, 0, 0.0, "false", "False", "0")),
    ],
)
def test_labels_are_true_or_false_however_a_table_writes_them(value: Any, label: bool) -> None:
    row = {"prompt": "a", "completion": "b", "label": value}
    assert document(row, Shape(FORMAT))["label"] is label


def text(**changes: Any) -> dict[str, Any]:
    return {"prompt": "a", "completion": "b", "label": True, **changes}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (text(label=None), "got nothing for the label, expected true or false"),
        (text(label="good"), "got 'good' for the label, expected true or false"),
        (text(label=2), "got 2 for the label, expected true or false"),
        (text(label=0.5), "got 0.5 for the label, expected true or false"),
        ({"prompt": "a", "completion": "b"}, "got columns prompt, completion, expected label"),
        (text(completion=" \n"), "got nothing in column completion, expected an answer"),
        (text(completion=None), "got nothing in column completion, expected an answer"),
        (text(completion=[]), "got nothing in column completion, expected an answer"),
        (text(prompt=None), "got no prompt, expected one for each completion"),
        (
            text(prompt=[ASKED]),
            "got text and messages in one row, expected prompt and completion both as text or both "
            "as messages",
        ),
        (
            {"messages": [ASKED, REPLY, ASKED], "label": True},
            "the conversation doesn't end with an answer of the assistant to train on",
        ),
        (
            {"prompt": "be a pirate", "messages": [ASKED, REPLY], "label": True},
            "got a prompt as text that the messages don't have before their answer",
        ),
        (
            {"prompt": "b", "messages": [REPLY], "label": True},
            "got a prompt as text that the messages don't have before their answer",
        ),
        (
            {"messages": [ASKED], "completion": [REPLY], "label": True},
            "got messages and a completion in one row, expected one of them",
        ),
        (
            text(messages=[ASKED, REPLY]),
            "got messages and a completion in one row, expected one of them",
        ),
        (text(system="S"), "got a system prompt, which answers that are text can't have"),
    ],
)
def test_what_is_no_answer_with_a_label_is_refused(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(RowError) as caught:
        document(row, Shape(FORMAT))
    assert caught.value.problem == problem
    assert caught.value.remedy


def test_a_document_is_that_of_a_language_model_and_keeps_its_prompts_together() -> None:
    plain = Document(prompt="a", completion="b", tools=None, label=False, group="g")
    assert answers_of(plain) == (Document(prompt="a", completion="b", group="g"),)
    assert (content(plain), plain_text(plain), group_of(plain)) == ("a\0b", "ab", "g")
    spoken = talk(ASKED, REPLY)
    # As a dataset has it.
    for one in (spoken, {**spoken, "prompt": None}):
        (answer,) = answers_of(one)  # type: ignore[arg-type]
        assert answer == Document(messages=spoken["completion"], tools=None)
        assert plain_text(one) == "é?\nb"  # type: ignore[arg-type]
        assert group_of(one) == group_of(answer) == json.dumps([ASKED])  # type: ignore[arg-type]


def test_another_answer_follows_the_same_prompt() -> None:
    first, second = (Document(prompt=p, completion=c, label=True) for p, c in ("ab", "cd"))
    assert with_answer_of(first, second) == Document(prompt="a", completion="d")
    call, result = {**SAID, "content": "call"}, {"role": "tool", "content": "3"}
    long = talk(ASKED, UNTRAINED, ASKED, call, result, REPLY)
    assert json.loads(prompt_of(long)) == [ASKED, UNTRAINED, ASKED]
    assert json.loads(reply_of(long)) == [call, result, REPLY]
    mixed = with_answer_of(talk(ASKED, SAID), long)
    assert json.loads(mixed["messages"]) == [ASKED, call, result, REPLY]
