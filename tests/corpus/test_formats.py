"""Rows of a table as documents."""

import json
from typing import Any

import pytest

from moray.config.formats import FormatName
from moray.corpus.dataset import Document, RowError
from moray.corpus.formats import Shape, document


def chat(*messages: tuple[str, str], tools: Any = None) -> Document:
    listed = [{"role": role, "content": content} for role, content in messages]
    return Document(
        messages=json.dumps(listed, ensure_ascii=False),
        tools=tools and json.dumps(tools, ensure_ascii=False),
    )


TALK = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]

ROWS: list[tuple[str, dict[str, Any], Document]] = [
    ("text", {"text": "é 🐍"}, Document(text="é 🐍")),
    ("text", {"text": ""}, Document(text="")),
    (
        "prompt-completion",
        {"prompt": "a\n", "completion": " b"},
        Document(prompt="a\n", completion=" b"),
    ),
    (
        "instruction",
        {"instruction": "Add.", "input": "1 é", "output": "2", "system": "S"},
        chat(("system", "S"), ("user", "Add.\n\n1 é"), ("assistant", "2")),
    ),
    (
        "messages",
        {"messages": TALK, "tools": TOOLS, "system": "S"},
        chat(("system", "S"), ("user", "é"), ("assistant", "b"), tools=TOOLS),
    ),
]


_ASKED = [TALK[0], {"role": "assistant", "content": "Which?"}, {"role": "user", "content": "c"}]
_COMPLETED = Document(
    messages=json.dumps(
        [_ASKED[0], {**_ASKED[1], "weight": 0}, _ASKED[2], TALK[1]], ensure_ascii=False
    ),
    tools=json.dumps(TOOLS),
)
ROWS.append(("messages", {"prompt": _ASKED, "completion": TALK[1:], "tools": TOOLS}, _COMPLETED))


@pytest.mark.parametrize(("format", "row", "expected"), ROWS)
def test_a_row_has_the_columns_of_its_format(
    format: FormatName, row: dict[str, Any], expected: Document
) -> None:
    assert document({"other": 5, **row}, Shape(format)) == expected


@pytest.mark.parametrize(("format", "row", "expected"), ROWS)
def test_columns_may_have_names_of_their_own(
    format: FormatName, row: dict[str, Any], expected: Document
) -> None:
    columns = {name: f"my {name}" for name in row}
    renamed = {columns[name]: value for name, value in row.items()}
    # What has the format's own name is then another column.
    misleading = dict.fromkeys(row, "not this")
    assert document(renamed | misleading, Shape(format, columns)) == expected


def test_two_columns_may_change_places() -> None:
    swapped = Shape("prompt-completion", {"prompt": "completion", "completion": "prompt"})
    made = document({"prompt": "a", "completion": "b"}, swapped)
    assert made == Document(prompt="b", completion="a")


@pytest.mark.parametrize("more", [{}, {"input": None}, {"input": ""}])
def test_an_instruction_may_be_without_input(more: dict[str, Any]) -> None:
    row = {"instruction": "Say é.", "output": "é", **more}
    assert document(row, Shape("instruction")) == chat(("user", "Say é."), ("assistant", "é"))


@pytest.mark.parametrize("columns", [{}, {"messages": "conversations"}])
def test_sharegpt_calls_its_column_conversations(columns: dict[str, str]) -> None:
    row = {"conversations": [{"from": "human", "value": "é"}, {"from": "gpt", "value": "b"}]}
    assert document(row, Shape("messages", columns)) == chat(("user", "é"), ("assistant", "b"))


@pytest.mark.parametrize(
    ("format", "row"),
    [
        ("instruction", {"instruction": "é", "output": "b"}),
        ("messages", {"messages": TALK}),
        ("messages", {"messages": TALK, "system": None}),
    ],
)
def test_conversations_without_a_system_prompt_get_that_of_the_config(
    format: FormatName, row: dict[str, Any]
) -> None:
    expected = chat(("system", "S"), ("user", "é"), ("assistant", "b"))
    assert document(row, Shape(format, {}, "S")) == expected
    theirs = chat(("system", "T"), ("user", "é"), ("assistant", "b"))
    assert document({**row, "system": "T"}, Shape(format, {}, "S")) == theirs


@pytest.mark.parametrize(
    ("format", "columns", "row", "missing"),
    [
        ("text", {}, {"body": "a", "title": "b"}, "text"),
        ("text", {"text": "content"}, {"text": "a", "title": "b"}, "content"),
        ("prompt-completion", {}, {"prompt": "a", "answer": "b"}, "completion"),
        ("instruction", {}, {"instruction": "a", "input": "b"}, "output"),
        ("messages", {}, {"chat": [], "id": 1}, "messages"),
        ("messages", {"messages": "talk"}, {"messages": [], "id": 1}, "talk"),
    ],
)
def test_a_missing_column_is_reported_with_those_that_are_there(
    format: FormatName, columns: dict[str, str], row: dict[str, Any], missing: str
) -> None:
    with pytest.raises(RowError) as caught:
        document(row, Shape(format, columns))
    assert caught.value.problem == f"got columns {', '.join(row)}, expected {missing}"
    assert "columns" in caught.value.remedy


def test_of_messages_and_a_completion_the_messages_are_read() -> None:
    row = {"messages": TALK, "prompt": "a title", "completion": "b"}
    assert document(row, Shape("messages")) == chat(("user", "é"), ("assistant", "b"))


@pytest.mark.parametrize("part", ["prompt", "completion"])
def test_a_completion_that_is_no_list_of_messages_is_named(part: str) -> None:
    row = {"prompt": TALK[:1], "completion": TALK[1:], part: 5}
    with pytest.raises(RowError) as caught:
        document(row, Shape("messages"))
    assert caught.value.problem == f"got int for {part}, expected a list of messages"


@pytest.mark.parametrize(
    ("format", "column"),
    [
        ("text", "text"),
        ("prompt-completion", "completion"),
        ("instruction", "instruction"),
        ("instruction", "output"),
    ],
)
def test_what_is_no_text_is_reported_with_its_column(format: FormatName, column: str) -> None:
    row = {"text": "a", "prompt": "a", "completion": "b", "instruction": "a", "output": "b"}
    mine = {column: "mine"}
    values = {"nothing": None, "int": 3, "bytes": b"a", "list": ["a"]}
    for got, value in values.items():
        with pytest.raises(RowError) as caught:
            pytest.fail(f"{got}: {document(row | {column: value}, Shape(format))}")
        assert caught.value.problem == f"got {got} in column {column}, expected text"
        with pytest.raises(RowError) as caught:
            pytest.fail(f"{got}: {document(row | {'mine': value}, Shape(format, mine))}")
        assert caught.value.problem == f"got {got} in column mine, expected text"


@pytest.mark.parametrize(
    ("format", "column"),
    [("instruction", "input"), ("instruction", "system"), ("messages", "system")],
)
def test_what_may_be_nothing_may_not_be_anything(format: FormatName, column: str) -> None:
    row = {"instruction": "a", "output": "b", "messages": TALK, column: 3}
    with pytest.raises(RowError) as caught:
        document(row, Shape(format))
    assert caught.value.problem == f"got int in column {column}, expected text"


@pytest.mark.parametrize(
    ("format", "row"),
    [
        ("text", r'{"text": "a \ud83d"}'),
        ("prompt-completion", r'{"prompt": "a", "completion": "\ud83d"}'),
        ("instruction", r'{"instruction": "a", "input": "\ud83d", "output": "b"}'),
        ("messages", r'{"messages": [{"role": "assistant", "content": "\ud83d"}]}'),
        (
            "messages",
            r'{"messages": [{"role": "assistant", "content": "a"}], '
            r'"tools": [{"name": "f", "description": "\ud83d"}]}',
        ),
    ],
)
def test_an_unpaired_surrogate_is_refused(format: FormatName, row: str) -> None:
    with pytest.raises(RowError) as caught:
        document(json.loads(row), Shape(format))
    assert caught.value.problem == "got an unpaired surrogate (\\ud83d), expected Unicode text"
    whole = row.replace(r"\ud83d", r"\ud83d\udc0d")
    assert "🐍" in "".join(map(str, document(json.loads(whole), Shape(format)).values()))
