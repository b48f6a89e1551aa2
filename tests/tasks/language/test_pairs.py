"""Rows with two answers as documents."""

import json
from typing import Any

import pytest
from refused import refusal

from moray.config.tasks import FormatName
from moray.corpus.dataset import Document, content, halves, plain_text
from moray.tasks.language.formats import Shape, document

SHAPE = Shape("preference")
SYSTEM = {"role": "system", "content": "S"}
QUESTION = {"role": "user", "content": "é?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("yes", "no"))
FUNCTIONS = [{"type": "function", "function": {"name": "f"}}]


def said(document: Document) -> list[list[tuple[str, str, int]]]:
    """Role, text and weight of each message of both halves."""
    return [
        [
            (message["role"], message["content"], message.get("weight", 1))
            for message in json.loads(half["messages"])
        ]
        for half in halves(document)
    ]


def test_a_pair_of_texts_has_two_halves() -> None:
    made = document({"prompt": "a\n", "chosen": " é", "rejected": " b"}, SHAPE)
    assert halves(made) == (
        Document(prompt="a\n", completion=" é"),
        Document(prompt="a\n", completion=" b"),
    )
    assert plain_text(made) == "a\n é\na\n b"


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
        # As UltraFeedback has them.
        {"prompt": "é?", "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]},
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


@pytest.mark.parametrize(
    "row",
    [
        # The system prompt is in the prompt alone, in the answers alone, or in both.
        {"prompt": [SYSTEM, QUESTION], "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]},
        {
            "prompt": [QUESTION],
            "chosen": [SYSTEM, QUESTION, GOOD],
            "rejected": [SYSTEM, QUESTION, BAD],
        },
        {"prompt": [SYSTEM, QUESTION], "chosen": [SYSTEM, QUESTION, GOOD], "rejected": [BAD]},
        {
            "prompt": [SYSTEM, QUESTION],
            "chosen": [{"from": "human", "value": "é?"}, GOOD],
            "rejected": BAD,
        },
    ],
)
def test_a_prompt_that_answers_repeat_is_there_once(row: dict[str, Any]) -> None:
    assert said(document(row, SHAPE)) == [
        [("system", "S", 1), ("user", "é?", 1), ("assistant", "yes", 1)],
        [("system", "S", 1), ("user", "é?", 1), ("assistant", "no", 1)],
    ]
    whole = {"prompt": row["prompt"], "completion": row["chosen"]}
    if isinstance(row["chosen"], list):
        made = json.loads(document(whole, Shape("messages"))["messages"])
        assert made == [SYSTEM, QUESTION, GOOD]


@pytest.mark.parametrize(
    "prompt",
    [
        [{"role": "user", "content": [{"type": "text", "text": "é?"}]}],
        [{"from": "human", "value": "é?"}],
    ],
)
def test_a_prompt_is_the_same_however_it_is_spelled(prompt: Any) -> None:
    made = document({"prompt": prompt, "completion": [QUESTION, GOOD]}, Shape("messages"))
    assert json.loads(made["messages"]) == [QUESTION, GOOD]


def test_a_prompt_within_the_whole_conversation_is_there_once() -> None:
    last = {"role": "user", "content": "sure?"}
    for answer in (GOOD, BAD):
        row = {"prompt": [last], "completion": [QUESTION, GOOD, last, answer]}
        made = json.loads(document(row, Shape("messages"))["messages"])
        assert made == [QUESTION, {**GOOD, "weight": 0}, last, answer]


def test_a_user_who_repeats_the_prompt_in_the_answer_is_left_alone() -> None:
    answer = [GOOD, QUESTION, BAD]
    made = document({"prompt": [QUESTION], "completion": answer}, Shape("messages"))
    assert json.loads(made["messages"]) == [QUESTION, *answer]


def test_the_end_of_a_prompt_that_answers_repeat_is_there_once() -> None:
    before = [QUESTION, GOOD, {"role": "user", "content": "sure?"}]
    row = {"prompt": before, "completion": [before[-1], BAD]}
    made = json.loads(document(row, Shape("messages"))["messages"])
    assert made == [QUESTION, {**GOOD, "weight": 0}, before[-1], BAD]


def test_only_the_answers_are_trained() -> None:
    before = [QUESTION, GOOD, {"role": "user", "content": "sure?"}]
    made = document({"chosen": [*before, GOOD], "rejected": [*before, BAD]}, SHAPE)
    for half, answer in zip(said(made), ("yes", "no"), strict=True):
        assert [weight for role, _, weight in half if role == "assistant"] == [0, 1]
        assert half[-1] == ("assistant", answer, 1)


def test_system_prompt_and_tools_are_those_of_conversations() -> None:
    row = {"prompt": [QUESTION], "chosen": [GOOD], "rejected": [BAD], "tools": FUNCTIONS}
    made = document(row, Shape("preference", {}, "S"))
    assert [half[0] for half in said(made)] == [("system", "S", 1)] * 2
    assert [json.loads(str(half["tools"])) for half in halves(made)] == [FUNCTIONS] * 2
    theirs = document({**row, "system": "T"}, Shape("preference", {}, "S"))
    assert [half[0] for half in said(theirs)] == [("system", "T", 1)] * 2


@pytest.mark.parametrize("name", ["chosen", "rejected"])
@pytest.mark.parametrize("blank", ["", " \n", None])
def test_an_answer_of_a_pair_has_text(name: str, blank: str | None) -> None:
    pair = {"prompt": "a", "chosen": "b", "rejected": "c", name: blank}
    problem = refusal(pair, Shape("preference")).problem
    assert problem == f"got nothing in column {name}, expected an answer"
    talks = {
        answer: [QUESTION, {"role": "assistant", "content": pair[answer]}]
        for answer in ("chosen", "rejected")
    }
    problem = refusal(talks, Shape("preference")).problem
    assert problem == "message 2, of the assistant, is empty, expected text or a tool call"


TEXT = {"prompt": "a", "chosen": "b", "rejected": "c"}
BEGUN = "the prompt ends in a message of the assistant, and {} goes on with another: two turns"
SPOKEN = {"prompt": [QUESTION], "chosen": [GOOD], "rejected": [BAD]}


def test_a_prompt_that_begins_the_answer_is_refused() -> None:
    row = {"prompt": [QUESTION, {**GOOD, "content": "Let me think."}], "completion": [GOOD]}
    assert refusal(row, Shape("messages")).problem.startswith(BEGUN.format("completion"))


def test_what_is_no_pair_costs_one_line() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        (TEXT | {"rejected": "b"}, "chosen and rejected are equal, so neither is preferred"),
        (SPOKEN | {"rejected": [GOOD]}, "chosen and rejected are equal, so neither is preferred"),
        (SPOKEN | {"rejected": GOOD}, "chosen and rejected are equal, so neither is preferred"),
        (TEXT | {"rejected": None}, "got nothing in column rejected, expected an answer"),
        (TEXT | {"chosen": ""}, "got nothing in column chosen, expected an answer"),
        (SPOKEN | {"chosen": []}, "got nothing in column chosen, expected an answer"),
        *(
            (
                {"chosen": chosen, "rejected": rejected},
                "got no prompt, expected one for texts that don't begin with the same words",
            )
            for chosen, rejected in (
                *(("b", "c"), (" b", " c"), ("\nb", "\nc"), ("there", "their"), ("a", "a b")),
                ("a b", "a "),
            )
        ),
        ({"prompt": "a", "chosen": "b"}, "got columns prompt, chosen, expected rejected"),
        (SPOKEN | {"prompt": "a"}, "got text and messages in one pair"),
        # The answer is no question.
        (SPOKEN | {"prompt": "yes", "rejected": [GOOD, BAD]}, "got text and messages in one pair"),
        (TEXT | {"chosen": [GOOD]}, "got text and messages in one pair"),
        (TEXT | {"chosen": 5}, "got text and messages in one pair"),
        (SPOKEN | {"chosen": 5}, "got list and int for prompt and chosen"),
        (
            SPOKEN | {"chosen": [GOOD, QUESTION]},
            "the conversation of chosen doesn't end with an answer of the assistant",
        ),
        (
            SPOKEN | {"rejected": [GOOD, QUESTION]},
            "the conversation of chosen doesn't end with an answer of the assistant",
        ),
        (
            {"chosen": [QUESTION, GOOD], "rejected": [{**QUESTION, "content": "!"}, BAD]},
            "chosen and rejected begin differently, expected the same prompt in both",
        ),
        (
            SPOKEN | {"prompt": [SYSTEM, QUESTION], "chosen": [{**SYSTEM, "content": "!"}, GOOD]},
            "prompt and chosen have different system prompts, expected one in the prompt",
        ),
        (
            SPOKEN | {"chosen": [QUESTION]},
            "chosen has only messages of the prompt, and no answer",
        ),
        (SPOKEN | {"prompt": [QUESTION, BAD]}, BEGUN.format("chosen")),
        (SPOKEN | {"chosen": [{"role": "x"}]}, "got role 'x' in message 2"),
        (TEXT | {"system": "S"}, "got a system prompt, which answers that are text can't have"),
    ]
    for row, problem in wrong:
        assert refusal(row, SHAPE).problem.startswith(problem), row


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected"),
    [
        # As Anthropic/hh-rlhf, and what TRL's extract_prompt makes of it.
        ("\n\nHuman: Hi?\n\nAssistant:", " Hello.", " No."),
        ("\n\nHuman: Hi?\n\nAssistant: I", " think.", " don't."),
        ("Q: é?\n", "yes", "no"),
        # Words stay whole, and both answers have one.
        ("it is", " there", " their"),
        ("it is", " 4", " 45"),
        ("a", " b", " b c"),
        ("a ", " b", " c"),
    ],
)
@pytest.mark.parametrize("format", ["preference", "reward"])
def test_the_prompt_of_whole_texts_is_what_both_begin_with(
    format: FormatName, prompt: str, chosen: str, rejected: str
) -> None:
    row, shape = {"chosen": prompt + chosen, "rejected": prompt + rejected}, Shape(format)
    found = document(row, shape)
    assert (found["prompt"], found["chosen"], found["rejected"]) == (prompt, chosen, rejected)
    assert shape.findings.remarks.lines("mine") == [
        "dataset mine: some pairs have no prompt; it is what both texts begin with (first in )"
    ]


@pytest.mark.parametrize("format", ["preference", "reward"])
def test_texts_with_an_empty_prompt_stay_whole(format: FormatName) -> None:
    row = {"prompt": "", "chosen": "a b", "rejected": "a c"}
    found = document(row, Shape(format))
    assert (found["prompt"], found["chosen"], found["rejected"]) == ("", "a b", "a c")


def test_pairs_are_duplicates_only_if_all_parts_are_the_same() -> None:
    rows: list[dict[str, Any]] = [TEXT, *({**TEXT, name: "other"} for name in TEXT), SPOKEN]
    assert len({content(document(row, SHAPE)) for row in rows}) == len(rows)
