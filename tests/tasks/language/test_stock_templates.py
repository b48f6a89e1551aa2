"""What is trained of conversations by the chat templates that models have.

The text of a conversation and the prompt for an answer are those of the tokenizer's own
`apply_chat_template`.
"""

import json
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from conversations import TOOLS
from stock_table import (
    EMPTY,
    ROWS,
    SHARED,
    TEMPLATES,
    by_itself,
    document_of,
    plain_messages,
    tokenizer_of,
    trained_texts,
)
from transformers import PreTrainedTokenizerFast

from moray.errors import UserError
from moray.model.chat_template import with_defaults
from moray.tasks.language.alterations import lines
from moray.tasks.language.chat import ChatTemplate
from moray.tasks.language.encode import Encoder
from moray.tasks.language.pieces import EncodedDocument

OFFERING = {"Llama 3.1", "Mistral", "Qwen2.5", "Qwen3", "Qwen3.5", "gpt-oss"}


def encoded(
    tokenizer: PreTrainedTokenizerFast, name: str, row: str, **settings: Any
) -> list[EncodedDocument]:
    one = TEMPLATES[name]
    chat = ChatTemplate(tokenizer, one.template, [one.stop, *one.more_stops], **settings)
    encoder = Encoder(tokenizer, 4096, chat=chat)
    return list(encoder.encode_documents([document_of(row)], 0, count_bytes=False))


def trained_runs(tokenizer: PreTrainedTokenizerFast, document: EncodedDocument) -> list[str]:
    """The texts of tokens that are trained one after the other."""
    runs = groupby(zip(document.mask, document.tokens, strict=True), itemgetter(0))
    return [tokenizer.decode([token for _, token in run]) for trained, run in runs if trained]


def check_prompt(
    tokenizer: PreTrainedTokenizerFast, document: EncodedDocument, name: str, whole: str, asked: str
) -> None:
    """What comes before the last answer is what a model is asked with; or it is named."""
    named = list(lines(document.alterations))
    before = np.flatnonzero(np.diff(document.mask.astype(int)) == 1)[-1] + 1
    prompt = tokenizer(asked, add_special_tokens=False)["input_ids"]
    seen = document.tokens[:before].tolist()
    if name == "DeepSeek-R1-Distill":
        assert whole.startswith(asked.removesuffix("<think>\n"))
    elif SHARED in named:
        assert seen == prompt[: len(seen)]
    elif any("not trained" in line for line in named):
        assert tokenizer.decode(seen).startswith(asked)
        assert tokenizer.decode(seen) != asked
    else:
        assert seen == prompt


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_answers_and_their_stop_tokens_are_trained_or_the_rest_is_named(
    name: str, row: str
) -> None:
    one = TEMPLATES[name]
    tokenizer, expected = tokenizer_of(one), trained_texts(name, row)
    if isinstance(expected, str):
        with pytest.raises(UserError) as caught:
            encoded(tokenizer, name, row)
        assert caught.value.problem.startswith(expected)
        return
    (document,) = encoded(tokenizer, name, row)
    whole = by_itself(tokenizer, name, row)
    assert document.tokens.tolist() == tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert trained_runs(tokenizer, document) == expected
    remarks = (one.remarks or {}).get(row, list(one.same))
    assert sorted(lines(document.alterations)) == sorted(remarks)
    asked = by_itself(tokenizer, name, row, -1, add_generation_prompt=True)
    check_prompt(tokenizer, document, name, whole, asked)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_each_turn_is_trained_behind_the_prompt_that_generation_has(name: str, row: str) -> None:
    tokenizer, expected = tokenizer_of(TEMPLATES[name]), trained_texts(name, row, are_last=True)
    if isinstance(expected, str):
        with pytest.raises(UserError):
            encoded(tokenizer, name, row, turns="each")
        return
    documents = encoded(tokenizer, name, row, turns="each")
    messages = plain_messages(name, row)
    places = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    texts = []
    for place, document in zip(places, documents, strict=True):
        whole = by_itself(tokenizer, name, row, place + 1)
        assert document.tokens.tolist() == tokenizer(whole, add_special_tokens=False)["input_ids"]
        texts += trained_runs(tokenizer, document)
        asked = by_itself(tokenizer, name, row, place, add_generation_prompt=True)
        check_prompt(tokenizer, document, name, whole, asked)
        assert not any("earlier turns" in line for line in lines(document.alterations))
    assert texts == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_that_a_template_does_not_offer_are_named(name: str) -> None:
    tokenizer, one = tokenizer_of(TEMPLATES[name]), TEMPLATES[name]
    chat = ChatTemplate(tokenizer, one.template, [one.stop])
    rendered = chat.render({**document_of("one turn"), "tools": json.dumps(TOOLS)})
    line = "the chat template leaves out the tools of 1 conversations"
    assert (line in list(lines(rendered.alterations))) == ("weather" not in rendered.text)
    assert ("weather" in rendered.text) == (name in OFFERING)
    assert line not in list(lines(chat.render(document_of("one turn")).alterations))


WITHOUT = {"enable_thinking": False}
# Where templates put their empty reasoning into the prompt.
SWITCHED = {"Qwen3": EMPTY, "Qwen3.5": EMPTY, "SmolLM3": "<think>\n\n</think>\n"}


@pytest.mark.parametrize("turns", ["together", "each"])
@pytest.mark.parametrize("row", ["one turn", "several turns", "system"])
@pytest.mark.parametrize("name", SWITCHED)
def test_variables_reach_the_template_in_tokens_and_prompts(
    name: str, row: str, turns: str
) -> None:
    tokenizer, one = tokenizer_of(TEMPLATES[name]), TEMPLATES[name]
    document = encoded(tokenizer, name, row, variables=WITHOUT, turns=turns)[-1]
    whole = by_itself(tokenizer, name, row, **WITHOUT)
    assert document.tokens.tolist() == tokenizer(whole, add_special_tokens=False)["input_ids"]
    asked = by_itself(tokenizer, name, row, -1, add_generation_prompt=True, **WITHOUT)
    assert asked.endswith(SWITCHED[name])
    chat = ChatTemplate(tokenizer, one.template, [one.stop], variables=WITHOUT)
    answer = ROWS[row][-1]["content"]
    assert chat.prompt(document_of(row)) == (asked, answer)
    assert trained_runs(tokenizer, document)[-1] == answer + one.stop
    check_prompt(tokenizer, document, name, whole, asked)


@pytest.mark.parametrize("name", SWITCHED)
def test_an_exported_template_renders_as_in_training(name: str) -> None:
    """As `moray chat`, benchmarks, llama.cpp and servers get it, which know no variables."""
    tokenizer, one = tokenizer_of(TEMPLATES[name]), TEMPLATES[name]
    exported = with_defaults(one.template, WITHOUT)
    assert isinstance(exported, str)
    alone = ChatTemplate(tokenizer, exported, [one.stop])
    training = ChatTemplate(tokenizer, one.template, [one.stop], variables=WITHOUT)
    for row in ("one turn", "several turns", "system"):
        assert alone.render(document_of(row)) == training.render(document_of(row))
        assert alone.prompt(document_of(row)) == training.prompt(document_of(row))


def test_a_variable_that_the_template_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"data\.template_variables: got thinking, which the chat"):
        encoded(tokenizer_of(TEMPLATES["Qwen3"]), "Qwen3", "one turn", variables={"thinking": True})


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("Qwen3", "one turn", [EMPTY + "2<|im_end|>"]),
        ("Qwen3", "several turns", ["2<|im_end|>", EMPTY + "3<|im_end|>"]),
        # A token has the line break in front of it, too.
        ("Qwen3.5", "one turn", ["\n\n</think>\n\n2<|im_end|>"]),
        ("Llama 3.1", "one turn", ["2<|eot_id|>"]),
        ("Qwen3", "reasoning field", ["<think>\none and one\n</think>\n\n2<|im_end|>"]),
    ],
)
def test_what_a_template_puts_before_an_answer_is_trained_on_demand(
    name: str, row: str, expected: list[str]
) -> None:
    tokenizer = tokenizer_of(TEMPLATES[name])
    (document,) = encoded(tokenizer, name, row, train_template_text=True)
    assert trained_runs(tokenizer, document) == expected
    (plain,) = encoded(tokenizer, name, row)
    assert document.tokens.tolist() == plain.tokens.tolist()
    puts = [line for line in lines(document.alterations) if "trained with them" in line]
    assert bool(puts) == (trained_runs(tokenizer, plain) != expected)


def test_an_answer_begins_behind_a_prompt_that_has_its_first_tag() -> None:
    """As DeepSeek-R1-Distill has it, without the part that drops reasoning."""
    one = TEMPLATES["DeepSeek-R1-Distill"]
    drops = (
        "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    )
    assert drops in one.template
    whole, tokenizer = one.template.replace(drops, ""), tokenizer_of(one)
    chat = ChatTemplate(tokenizer, whole, [one.stop])
    prompt, reference = chat.prompt(document_of("reasoning"))
    asked = by_itself(tokenizer, "DeepSeek-R1-Distill", "reasoning", -1, add_generation_prompt=True)
    assert prompt == asked
    assert asked.endswith("<think>\n")
    assert reference == "one and one\n</think>\n\n2"
    encoder = Encoder(tokenizer, 4096, chat=chat)
    (document,) = encoder.encode_documents([document_of("reasoning")], 0, count_bytes=False)
    assert trained_runs(tokenizer, document) == ["1" + one.stop, reference + one.stop]
    assert list(lines(document.alterations)) == [
        "in generation, prompts end in '<think>\\n', which 1 of 2 answers lack here"
    ]
    check_prompt(tokenizer, document, "", "", asked)
