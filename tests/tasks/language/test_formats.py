"""Rows of tables as documents."""

import json
import re
from typing import Any

import pytest
from refused import refusal

from moray.config.tasks import FormatName
from moray.corpus.dataset import Document, content, plain_text
from moray.tasks.language.formats import Shape, document


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
        "instruction",
        {"instruction": "d", "output": "e", "history": [["é", "b"]]},
        chat(("user", "é"), ("assistant", "b"), ("user", "d"), ("assistant", "e")),
    ),
    (
        "messages",
        {"messages": TALK, "tools": TOOLS, "system": "S"},
        chat(("system", "S"), ("user", "é"), ("assistant", "b"), tools=TOOLS),
    ),
    (
        "token-classification",
        {"tokens": ["é", 1815.0, "NaN"], "tags": ["B-PER", "O", "O"]},
        Document(tokens='["é", "1815", "NaN"]', tags='["B-PER", "O", "O"]'),
    ),
    (
        "preference",
        {"prompt": "a\n", "chosen": " é", "rejected": " b"},
        Document(prompt="a\n", chosen=" é", rejected=" b", tools=None),
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


_BLANK = {"role": "assistant", "content": " \n"}


@pytest.mark.parametrize(
    ("format", "row"),
    [
        ("prompt-completion", {"prompt": "a", "completion": " \n"}),
        ("instruction", {"instruction": "a", "output": " \n"}),
        ("messages", {"messages": [*TALK, TALK[0], _BLANK]}),
        ("messages", {"prompt": TALK[:1], "completion": [_BLANK]}),
        ("preference", {"prompt": "a", "chosen": " \n", "rejected": "b"}),
        ("preference", {"prompt": "a", "chosen": "b", "rejected": " \n"}),
        ("preference", {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [_BLANK]}),
        ("preference", {"prompt": TALK[:1], "chosen": _BLANK, "rejected": TALK[1]}),
        ("unpaired-preference", {"prompt": "a", "completion": " \n", "label": True}),
        ("unpaired-preference", {"prompt": TALK[:1], "completion": [_BLANK], "label": True}),
    ],
)
def test_an_answer_of_white_space_alone_is_refused_in_each_format(
    format: FormatName, row: dict[str, Any]
) -> None:
    assert re.search("empty|nothing", refusal(row, Shape(format)).problem)


@pytest.mark.parametrize("more", [{}, {"input": None}, {"input": ""}])
def test_an_instruction_may_be_without_input(more: dict[str, Any]) -> None:
    row = {"instruction": "Say é.", "output": "é", **more}
    assert document(row, Shape("instruction")) == chat(("user", "Say é."), ("assistant", "é"))


@pytest.mark.parametrize("history", ["é", [["é"]], [["é", "b", "c"]], ["éb"]])
def test_a_history_is_a_list_of_pairs(history: Any) -> None:
    row = {"instruction": "é", "output": "b", "history": history}
    problem = refusal(row, Shape("instruction")).problem
    assert problem.startswith("got a history that is no list of pairs")
    unused = Shape("instruction", {"history": "none"})
    assert document(row, unused) == chat(("user", "é"), ("assistant", "b"))


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
    error = refusal(row, Shape(format, columns))
    assert error.problem == f"got columns {', '.join(row)}, expected {missing}"
    assert "columns" in error.remedy


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_values_that_commas_do_not_separate_get_a_remedy(mark: str) -> None:
    error = refusal({f"prompt{mark}completion": f"a{mark}b"}, Shape("prompt-completion"))
    assert error.problem == f"got columns {f'prompt{mark}completion'!r}, expected prompt"
    assert error.remedy == f"set delimiter: {json.dumps(mark)}, of source: files or url"


def test_of_messages_and_a_completion_the_messages_are_read() -> None:
    row = {"messages": TALK, "prompt": "a title", "completion": "b"}
    assert document(row, Shape("messages")) == chat(("user", "é"), ("assistant", "b"))


def test_a_prompt_that_messages_do_not_have_is_named() -> None:
    def said(prompt: Any, columns: dict[str, str]) -> list[str]:
        shape = Shape("messages", columns)
        shape.findings.remarks.place = "file, line 1"
        document({"messages": TALK, "prompt": prompt}, shape)
        return shape.findings.remarks.lines("chats")

    assert said("a title", {}) == [
        "warning: dataset chats: some rows have a prompt as text that their messages don't have, "
        "which is not used (first in file, line 1)"
    ]
    for prompt, columns in (("é\n", {}), (None, {}), (" ", {}), ("a title", {"group": "prompt"})):
        assert said(prompt, columns) == []


def test_a_column_that_is_read_under_another_name_is_not_read_again() -> None:
    row = {"input": "é", "output": "b"}
    expected = chat(("user", "é"), ("assistant", "b"))
    assert document(row, Shape("instruction", {"instruction": "input"})) == expected


@pytest.mark.parametrize("part", ["prompt", "completion"])
def test_a_completion_that_is_no_list_of_messages_is_named(part: str) -> None:
    row = {"prompt": TALK[:1], "completion": TALK[1:], part: 5}
    problem = f"got int for {part}, expected a list of messages"
    assert refusal(row, Shape("messages")).problem == problem


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
        own, renamed = row | {column: value}, row | {"mine": value}
        for name, error in (
            (column, refusal(own, Shape(format))),
            ("mine", refusal(renamed, Shape(format, mine))),
        ):
            assert error.problem == f"got {got} in column {name}, expected text"


@pytest.mark.parametrize(
    ("format", "column"),
    [("instruction", "input"), ("instruction", "system"), ("messages", "system")],
)
def test_what_may_be_nothing_may_not_be_anything(format: FormatName, column: str) -> None:
    row = {"instruction": "a", "output": "b", "messages": TALK, column: 3}
    assert refusal(row, Shape(format)).problem == f"got int in column {column}, expected text"


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
    problem = "got an unpaired surrogate (\\ud83d), expected Unicode text"
    assert refusal(json.loads(row), Shape(format)).problem == problem
    whole = row.replace(r"\ud83d", r"\ud83d\udc0d")
    assert "🐍" in "".join(map(str, document(json.loads(whole), Shape(format)).values()))


def test_a_column_of_groups_has_any_name_and_is_in_each_row() -> None:
    row = {"text": "a", "patient": 7}
    assert document(row, Shape("text", {"group": "patient"})) == Document(text="a", group="7")
    for missing in (None, ""):
        alone = document({"text": "a", "patient": missing}, Shape("text", {"group": "patient"}))
        assert alone == Document(text="a")
    error = refusal({"text": "a"}, Shape("text", {"group": "patient"}))
    assert error.problem == "got columns text, expected patient"


@pytest.mark.parametrize("completion", ["", " \n"])
def test_a_completion_has_text(completion: str) -> None:
    row = {"prompt": "a", "completion": completion}
    problem = refusal(row, Shape("prompt-completion")).problem
    assert problem == "got nothing in column completion, expected an answer"


@pytest.mark.parametrize(
    ("format", "name", "row"),
    [
        ("instruction", "output", {"instruction": "a", "mine": " "}),
        ("prompt-completion", "completion", {"prompt": "a", "mine": ""}),
        ("preference", "rejected", {"prompt": "a", "chosen": "b", "mine": None}),
        ("unpaired-preference", "completion", {"prompt": "a", "mine": "", "label": True}),
    ],
)
def test_an_empty_answer_is_reported_by_the_users_column(
    format: FormatName, name: str, row: dict[str, Any]
) -> None:
    problem = refusal(row, Shape(format, {name: "mine"})).problem
    assert problem == "got nothing in column mine, expected an answer"


def test_words_with_tags_may_have_their_other_usual_names() -> None:
    row = {"words": ["a"], "ner_tags": ["O"]}
    expected = Document(tokens='["a"]', tags='["O"]')
    assert document(row, Shape("token-classification")) == expected
    assert document({**row, "tokens": ["b"]}, Shape("token-classification"))["tokens"] == '["b"]'
    assert (content(expected), plain_text(expected)) == ('["a"]', "a")
