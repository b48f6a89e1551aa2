"""Rows of a preference dataset as pairs."""

import json
from typing import Any

import pytest

from moray.corpus.dataset import Document, RowError, content, halves, plain_text
from moray.corpus.formats import Shape, document

SHAPE = Shape("preference")
QUESTION = {"role": "user", "content": "é?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("yes", "no"))
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def said(document: Document) -> list[list[tuple[str, str, int]]]:
    """Role, text and weight of each message of both halves."""
    return [
        [
            (message["role"], message["content"], message.get("weight", 1))
            for message in json.loads(half["messages"])
        ]
        for half in halves(document)
    ]


def test_a_pair_of_texts_stays_as_it_is() -> None:
    made = document({"prompt": "a\n", "chosen": " é", "rejected": " b", "id": 1}, SHAPE)
    assert made == Document(prompt="a\n", chosen=" é", rejected=" b", tools=None)
    assert halves(made) == (
        Document(prompt="a\n", completion=" é"),
        Document(prompt="a\n", completion=" b"),
    )
    assert plain_text(made) == "a\n é\na\n b"


def test_columns_may_have_names_of_their_own() -> None:
    columns = {"prompt": "question", "chosen": "response_j", "rejected": "response_k"}
    made = document(
        {"question": "a", "response_j": "b", "response_k": "c"}, Shape("preference", columns)
    )
    assert made == Document(prompt="a", chosen="b", rejected="c", tools=None)


SHAREGPT = {
    "conversations": [{"from": "human", "value": "é?"}],
    "chosen": {"from": "gpt", "value": "yes"},
    "rejected": {"from": "gpt", "value": "no"},
}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [QUESTION], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [QUESTION], "chosen": GOOD, "rejected": BAD},
        # Whole conversations, with and without the prompt beside them.
        {"chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]},
        {"prompt": None, "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]},
        {"prompt": [QUESTION], "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]},
        SHAREGPT,
        {
            "chosen": [{"from": "human", "value": "é?"}, {"from": "gpt", "value": "yes"}],
            "rejected": [{"from": "human", "value": "é?"}, {"from": "gpt", "value": "no"}],
        },
    ],
)
def test_pairs_of_messages_become_two_conversations(row: dict[str, Any]) -> None:
    made = document(row, SHAPE)
    assert "prompt" not in made
    assert said(made) == [
        [("user", "é?", 1), ("assistant", "yes", 1)],
        [("user", "é?", 1), ("assistant", "no", 1)],
    ]


def test_only_the_answers_are_trained() -> None:
    before = [QUESTION, GOOD, {"role": "user", "content": "sure?"}]
    made = document({"chosen": [*before, GOOD], "rejected": [*before, BAD]}, SHAPE)
    for half, answer in zip(said(made), ("yes", "no"), strict=True):
        assert [weight for role, _, weight in half if role == "assistant"] == [0, 1]
        assert half[-1] == ("assistant", answer, 1)


def test_system_prompt_and_tools_are_those_of_conversations() -> None:
    row = {"prompt": [QUESTION], "chosen": [GOOD], "rejected": [BAD], "tools": TOOLS}
    made = document(row, Shape("preference", {}, "S"))
    assert [half[0] for half in said(made)] == [("system", "S", 1)] * 2
    assert [json.loads(str(half["tools"])) for half in halves(made)] == [TOOLS] * 2
    theirs = document({**row, "system": "T"}, Shape("preference", {}, "S"))
    assert [half[0] for half in said(theirs)] == [("system", "T", 1)] * 2


TEXT = {"prompt": "a", "chosen": "b", "rejected": "c"}
TALK = {"prompt": [QUESTION], "chosen": [GOOD], "rejected": [BAD]}


def test_what_is_no_pair_costs_one_line() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        (TEXT | {"rejected": "b"}, "chosen and rejected are equal, so neither is preferred"),
        (TALK | {"rejected": [GOOD]}, "chosen and rejected are equal, so neither is preferred"),
        (TALK | {"rejected": GOOD}, "chosen and rejected are equal, so neither is preferred"),
        (TEXT | {"rejected": None}, "got nothing for rejected, expected an answer"),
        (TEXT | {"chosen": ""}, "got nothing for chosen, expected an answer"),
        (TALK | {"chosen": []}, "got nothing for chosen, expected an answer"),
        ({"chosen": "b", "rejected": "c"}, "got no prompt, expected one for answers that are text"),
        ({"prompt": "a", "chosen": "b"}, "got columns prompt, chosen, expected rejected"),
        (TALK | {"prompt": "a"}, "got text and messages in one pair"),
        (TEXT | {"chosen": [GOOD]}, "got text and messages in one pair"),
        (TEXT | {"chosen": 5}, "got text and messages in one pair"),
        (TALK | {"chosen": 5}, "got list and int for prompt and chosen"),
        (
            TALK | {"chosen": [GOOD, QUESTION]},
            "the conversation of chosen doesn't end with an answer of the assistant",
        ),
        (
            TALK | {"rejected": [GOOD, QUESTION]},
            "the conversation of chosen doesn't end with an answer of the assistant",
        ),
        (
            {"chosen": [QUESTION, GOOD], "rejected": [{**QUESTION, "content": "!"}, BAD]},
            "chosen and rejected begin differently, expected the same prompt in both",
        ),
        (TALK | {"chosen": [{"role": "x"}]}, "got role 'x' in message 2"),
        (TEXT | {"system": "S"}, "got a system prompt, which answers that are text can't have"),
    ]
    for row, problem in wrong:
        with pytest.raises(RowError) as caught:
            pytest.fail(f"{row} makes {document(row, SHAPE)}")
        assert caught.value.problem.startswith(problem), row
        assert caught.value.remedy, row


def test_pairs_are_duplicates_only_if_all_parts_are_the_same() -> None:
    rows: list[dict[str, Any]] = [TEXT, *({**TEXT, name: "other"} for name in TEXT), TALK]
    assert len({content(document(row, SHAPE)) for row in rows}) == len(rows)
