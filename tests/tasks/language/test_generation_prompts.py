"""Prompts out of held-out documents."""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from conversations import CHATML, SAID, TALKS, chat_tokenizer, conversation
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from moray.corpus.dataset import Document
from moray.errors import UserError
from moray.tasks.language.chat import ChatTemplate
from moray.tasks.language.encode import Encoder
from moray.tasks.language.generation import Prompt, choose_prompts


class Held(dict[str, str]):
    """A document that can be seen to be let go."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def choose(
    rows: Iterable[Document], tokenizer: PreTrainedTokenizerFast | Encoder, **changes: Any
) -> list[Prompt]:
    encoder = tokenizer if isinstance(tokenizer, Encoder) else Encoder(tokenizer, 32)
    settings: dict[str, Any] = {
        "model_length": 128,
        "num_samples": 1000,
        "prompt_length": 8,
        "max_new_tokens": 16,
        "seed": 0,
        "left_out": Counter(),
    }
    return choose_prompts(iter(rows), encoder, **settings | changes)


def pairs(prompts: list[Prompt]) -> list[tuple[str, str]]:
    return [(prompt.text, prompt.reference) for prompt in prompts]


def count(tokenizer: PreTrainedTokenizerFast, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def trimming(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A tokenizer that, as many do, tidies what it decodes and gives offsets without spaces."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        clean_up_tokenization_spaces=True,
    )


@pytest.mark.parametrize("kind", ["plain", "trimming"])
def test_windows_lie_side_by_side_in_their_text(
    tokenizer: PreTrainedTokenizerFast, kind: str, texts: list[str]
) -> None:
    text = "".join(texts) + "don 't stop , there . 👩‍👩‍👧 東京 " * 3
    one = trimming(tokenizer) if kind == "trimming" else tokenizer
    prompts = choose([Document(text=text)], one)
    joined = "".join(prompt.text + prompt.reference for prompt in prompts)
    assert text.startswith(joined)
    assert count(one, text[len(joined) :]) <= 8, "what is left is too short for a window"
    assert len(prompts) == pytest.approx(count(one, text) / 24, abs=1)
    for prompt in prompts[:-1]:
        assert count(one, prompt.text) == pytest.approx(8, abs=3)
        assert count(one, prompt.reference) == pytest.approx(16, abs=3)


def test_no_character_is_cut_in_two(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "🦕🦖" * 40
    assert count(tokenizer, "🦕") > 1
    for length in (1, 2, 3, 5):
        prompts = choose([Document(text=text)], tokenizer, prompt_length=length)
        assert all(set(prompt.text + prompt.reference) <= set("🦕🦖") for prompt in prompts)
        assert text.startswith("".join(prompt.text + prompt.reference for prompt in prompts))


def test_a_text_of_exact_tokens_is_cut_between_them(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "zyxwvutsrqponmlkjihgfedcba"
    assert count(tokenizer, text) == 26
    prompts = choose([Document(text=text)], tokenizer, prompt_length=3, max_new_tokens=5)
    assert pairs(prompts) == [("zyx", "wvuts"), ("rqp", "onmlk"), ("jih", "gfedc")]


def test_a_short_text_is_a_prompt_as_a_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    assert pairs(choose([Document(text="value")], tokenizer)) == [("value", "")]


def test_a_pair_is_taken_as_it_is(
    tokenizer: PreTrainedTokenizerFast, documents: dict[str, list[Document]]
) -> None:
    rows = documents["prompt-completion"]
    expected = [(row["prompt"], row["completion"]) for row in rows]
    assert pairs(choose(rows, tokenizer, model_length=4096)) == expected


@pytest.mark.parametrize("format", ["text", "prompt-completion"])
def test_a_prompt_s_tokens_come_after_the_first_token_of_a_document(
    tokenizer: PreTrainedTokenizerFast, documents: dict[str, list[Document]], format: str
) -> None:
    for prompt in choose(documents[format], tokenizer, model_length=4096):
        alone = tokenizer(prompt.text, add_special_tokens=False)["input_ids"]
        assert prompt.tokens == [tokenizer.bos_token_id, *alone]


def test_of_a_conversation_all_but_the_last_answer_is_the_prompt(texts: list[str]) -> None:
    tokenizer = chat_tokenizer(texts)
    template = ChatTemplate(tokenizer, CHATML, ["<|im_end|>"])
    prompts = choose(TALKS, Encoder(tokenizer, 32, chat=template), model_length=4096)
    for prompt, talk, said in zip(prompts, TALKS, SAID, strict=True):
        # Nothing is added in front: the template brings what a conversation begins with.
        assert prompt.tokens == tokenizer(prompt.text, add_special_tokens=False)["input_ids"]
        assert prompt.reference + "<|im_end|>" == said[-1]
        assert template.render(talk).text == f"{prompt.text}{said[-1]}\n"


def test_conversations_that_no_prompt_can_be_made_of_are_passed_over(texts: list[str]) -> None:
    """Where the assistant speaks first, many templates fail on the nothing before it."""
    tokenizer = chat_tokenizer(texts)
    first = "{{ messages[0].role[0] and '' }}"
    encoder = Encoder(tokenizer, 32, chat=ChatTemplate(tokenizer, first + CHATML, ["<|im_end|>"]))
    greeting = conversation(("assistant", "Hello."))
    assert encoder.encode([greeting], 0, count_bytes=False)[0], "it is trained on all the same"
    left_out = Counter[str]()
    prompts = choose([greeting, *TALKS], encoder, model_length=4096, left_out=left_out)
    assert left_out == Counter(no_prompt=1)
    assert [prompt.reference + "<|im_end|>" for prompt in prompts] == [said[-1] for said in SAID]


def test_empty_prompts_need_a_token_that_opens_documents(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    bare = Encoder(tokenizer, 32, bos=False)
    rows = [Document(prompt=prompt, completion=" b") for prompt in ("", "a", "")]
    left_out = Counter[str]()
    assert pairs(choose(rows, bare, left_out=left_out)) == [("a", " b")]
    assert left_out == Counter(no_prompt=2)
    with pytest.raises(UserError, match="generate: got no prompt to continue"):
        choose(rows[:1], bare)


def test_prompts_that_leave_no_room_are_passed_over(
    tokenizer: PreTrainedTokenizerFast, documents: dict[str, list[Document]]
) -> None:
    rows = documents["prompt-completion"]
    left_out = Counter[str]()
    chosen = choose(rows, tokenizer, model_length=64, max_new_tokens=40, left_out=left_out)
    got = [prompt.text for prompt in chosen]
    fitting = [row["prompt"] for row in rows if count(tokenizer, row["prompt"]) + 1 + 40 <= 64]
    assert got == fitting
    assert left_out == Counter(no_room=len(rows) - len(fitting))
    assert 0 < len(fitting) < len(rows)


def test_a_prompt_may_fill_the_model_to_its_last_position(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    row: Document = {"prompt": "one two three", "completion": "four"}
    (prompt,) = choose([row], tokenizer)
    full = len(prompt.tokens) + 16
    assert choose([row], tokenizer, model_length=full) == [prompt]
    with pytest.raises(UserError, match="leaves no room"):
        choose([row], tokenizer, model_length=full - 1)


def test_where_no_prompt_leaves_room_the_key_is_named(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(
        UserError, match=r"^generate\.max_new_tokens: got 128, which leaves no room"
    ):
        choose([Document(text="value " * 50)], tokenizer, max_new_tokens=128)


def test_out_of_a_large_split_prompts_come_from_all_over_it_in_one_pass(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    number, samples = 3000, 20
    held: weakref.WeakSet[Held] = weakref.WeakSet()
    most = 0

    def passing() -> Iterator[Document]:
        nonlocal most
        for one in range(number):
            document = Held(prompt=f"{one:04}", completion="")
            held.add(document)
            most = max(most, len(held))
            yield cast(Document, document)

    def drawn(seed: int) -> list[int]:
        chosen = choose(passing(), tokenizer, num_samples=samples, seed=seed)
        return [int(prompt.text) for prompt in chosen]

    draws = [drawn(seed) for seed in (0, 0, *range(1, 20))]
    assert most < number / 2
    assert all(draw == sorted(set(draw)) and len(draw) == samples for draw in draws)
    assert draws[0] == draws[1] != draws[2]
    thirds = np.histogram(np.concatenate(draws[1:]), 3, (0, number))[0]
    assert thirds == pytest.approx(samples * 20 / 3, rel=0.4)
