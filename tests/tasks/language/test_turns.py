"""Where a conversation's turns begin and end, by templates that write them in their own way."""

from pathlib import Path
from typing import Any

import pytest
from conversations import CALL, CHATML, MARKED, TOOLS, TURNS, Message, conversation
from transformers import PreTrainedTokenizerFast
from turn_templates import DEEPSEEK, GPT_OSS, MISTRAL, ONLY_THE_LAST_STOPS, QWEN3

from moray.corpus.dataset import RowError
from moray.tasks.language.chat import ChatTemplate

IM_END = "<|im_end|>"
END = "<|endoftext|>"  # first and stop token of the tests' tokenizer

CALLING: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TALKING = CALLING | {"content": "I look."}
CALLED: list[Message] = [
    ("user", "Weather?"),
    CALLING,
    ("tool", "12"),
    ("assistant", "12, weather: mild."),
]


def special(tokenizer: PreTrainedTokenizerFast, *tokens: str) -> PreTrainedTokenizerFast:
    """The tokenizer with more special tokens."""
    more = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, bos_token=END, eos_token=END
    )
    more.add_tokens(list(tokens), special_tokens=True)
    return more


def said(
    tokenizer: PreTrainedTokenizerFast,
    template: str,
    messages: list[Message],
    *stops: str,
    tools: list[dict[str, Any]] | None = None,
) -> list[str]:
    """The text of each span."""
    chat = ChatTemplate(tokenizer, template, list(stops or (IM_END,)))
    rendered = chat.render(conversation(*messages, tools=tools))
    return [rendered.text[start:end] for start, end in rendered.spans]


CALL_TEXT = '<tool_call>\n{"name": "weather", "arguments": {"city": "東京"}}\n</tool_call>'


def test_what_is_said_beside_a_call_is_trained_with_it(tokenizer: PreTrainedTokenizerFast) -> None:
    talk: list[Message] = [("user", "?"), TALKING, ("tool", "12"), ("assistant", "Mild.")]
    spans = [f"I look.\n{CALL_TEXT}{IM_END}", f"Mild.{IM_END}"]
    assert said(tokenizer, CHATML, talk) == spans
    assert said(tokenizer, CHATML, [("system", "S"), *talk], tools=TOOLS) == spans


WITHOUT_CALLS = CHATML.replace("message.tool_calls or []", "[]")
WITHOUT_TEXT = CHATML.replace("{%- if message.content %}", "{%- if not message.tool_calls %}")


@pytest.mark.parametrize(
    ("template", "calling", "problem"),
    [
        (WITHOUT_CALLS, CALLING, "leaves out the tool calls of message 2"),
        (WITHOUT_CALLS, TALKING, "leaves out the tool calls of message 2"),
        (WITHOUT_TEXT, TALKING, "leaves out the text of message 2"),
        (MISTRAL, TALKING, "leaves out the text of message 2"),
    ],
)
def test_a_template_that_leaves_out_what_is_said_refuses_the_row(
    tokenizer: PreTrainedTokenizerFast, template: str, calling: Message, problem: str
) -> None:
    with pytest.raises(RowError) as caught:
        said(tokenizer, template, [("user", "?"), calling, ("tool", "1"), ("assistant", "2")])
    assert problem in caught.value.problem


def test_generation_tags_do_not_hide_that_a_call_is_left_out(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    template = MARKED.replace("{{- message.content +", "{{- (message.content or '') +")
    with pytest.raises(RowError) as caught:
        said(tokenizer, template, [("user", "?"), TALKING, ("tool", "1"), ("assistant", "2")])
    assert "leaves out the tool calls of message 2" in caught.value.problem


ASKS = "{{- '<|im_start|>assistant\n' }}"


@pytest.mark.parametrize("asks", ["", "{{- '<|im_start|>assistant\n<think>\n' }}"])
@pytest.mark.parametrize("calling", [CALLING, TALKING])
def test_a_call_is_trained_with_its_name_where_no_prompt_shows_its_beginning(
    tokenizer: PreTrainedTokenizerFast, asks: str, calling: Message
) -> None:
    assert CHATML.count(ASKS) == 1
    talk: list[Message] = [("user", "?"), calling, ("tool", "12"), ("assistant", "Mild.")]
    text = f"I look.\n{CALL_TEXT}{IM_END}" if calling is TALKING else f"{CALL_TEXT}{IM_END}"
    assert said(tokenizer, CHATML.replace(ASKS, asks), talk) == [text, f"Mild.{IM_END}"]


def test_text_may_stand_behind_its_call(tokenizer: PreTrainedTokenizerFast) -> None:
    template = """{%- for m in messages %}
        {%- for call in m.tool_calls or [] %}{{- call.function | tojson }}{%- endfor %}
        {{- m.content + '<|im_end|>' }}
    {%- endfor %}"""
    body = f"I say {IM_END} and look."
    talk: list[Message] = [("user", "?"), CALLING | {"content": body}, ("user", "!"), TURNS[1]]
    first, last = said(tokenizer, template, talk)
    assert first.startswith('{"name": "weather"')
    assert first.endswith("}" + body + IM_END)
    assert last == "2" + IM_END


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_of_mistral_s_conversations_the_call_and_the_answer_are_trained(
    tokenizer: PreTrainedTokenizerFast, tools: list[dict[str, Any]] | None
) -> None:
    assert said(tokenizer, MISTRAL, [*CALLED], END, tools=tools) == [
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "東京"}}]' + END,
        f" 12, weather: mild.{END}",
    ]


def test_of_two_calls_at_once_both_are_trained(tokenizer: PreTrainedTokenizerFast) -> None:
    twice = CALLING | {"tool_calls": [CALL, CALL]}
    talk: list[Message] = [("user", "?"), twice, *CALLED[2:]]
    one = '{"name": "weather", "arguments": {"city": "東京"}}'
    assert said(tokenizer, MISTRAL, talk, END)[0] == f"[TOOL_CALLS] [{one}, {one}]{END}"


OSS = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>")
BEGINS = "<|channel|>final<|message|>"


def test_earlier_turns_may_end_in_another_special_token(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert said(special(tokenizer, *OSS), GPT_OSS, TURNS, "<|return|>") == [
        f"{BEGINS}2<|end|>",
        f"{BEGINS}non, 東京 🐍.<|return|>",
    ]


@pytest.mark.parametrize("stops", [("<|return|>",), ("<|return|>", "<|call|>")])
@pytest.mark.parametrize("calling", [CALLING, TALKING])
def test_a_call_is_trained_where_the_tool_s_answer_needs_it(
    tokenizer: PreTrainedTokenizerFast, stops: tuple[str, ...], calling: dict[str, Any]
) -> None:
    talk: list[Message] = [CALLED[0], calling, *CALLED[2:]]
    thought = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant"
    assert said(special(tokenizer, *OSS), GPT_OSS, talk, *stops) == [
        (thought if calling is TALKING else "")
        + ' to=functions.weather<|channel|>commentary json<|message|>{"city": "東京"}<|call|>',
        f"{BEGINS}12, weather: mild.<|return|>",
    ]


def test_the_last_turn_begins_behind_the_prompt_for_it(tokenizer: PreTrainedTokenizerFast) -> None:
    """A model has to write what stands there."""
    last = {"role": "assistant", "content": "non.", "reasoning_content": "Five letters."}
    talk = [*TURNS[:3], last]
    expected = [f"2{IM_END}", f"<think>\nFive letters.\n</think>\n\nnon.{IM_END}"]
    assert said(tokenizer, QWEN3, talk) == expected
    chat, document = ChatTemplate(tokenizer, QWEN3, [IM_END]), conversation(*talk)
    prompt, reference = chat.prompt(document)
    rendered = chat.render(document)
    assert rendered.text[: rendered.spans[-1][0]] == prompt
    assert prompt + reference + IM_END + "\n" == rendered.text


# As Qwen 3 has it in full: reasoning since the last question is kept, also before a tool's answer.
REASONING = """
{%- set ns = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.reasoning_content is string and loop.index0 > ns.question %}
        {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
    {%- endif %}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function.arguments | tojson + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


# The assistant thinks in its text, and beside it.
THINKING: list[Message] = [
    ("user", "Two?"),
    ("assistant", "<think>\nOne and one.\n</think>\n\n2"),
    ("user", "Three?"),
    {"role": "assistant", "content": "3", "reasoning_content": "2 < 3, and 3 > 2."},
    ("user", "Four?"),
    ("assistant", "<think>\nTwo and two.\n</think>\n\n4"),
]


def test_nothing_that_is_thought_or_said_is_trained_twice(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert said(tokenizer, QWEN3, THINKING) == [
        f"2{IM_END}",
        f"3{IM_END}",
        f"<think>\nTwo and two.\n</think>\n\n4{IM_END}",
    ]
    rendered = ChatTemplate(tokenizer, QWEN3, [IM_END]).render(conversation(*THINKING))
    assert "".join(rendered.text.split()) == (
        "<|im_start|>userTwo?<|im_end|><|im_start|>assistant2<|im_end|>"
        "<|im_start|>userThree?<|im_end|><|im_start|>assistant3<|im_end|>"
        "<|im_start|>userFour?<|im_end|>"
        "<|im_start|>assistant<think>Twoandtwo.</think>4<|im_end|>"
    )


WITHOUT_SYSTEM = "{% set messages = messages[1:] %}" + CHATML


@pytest.mark.parametrize(
    ("template", "talk", "left_out"),
    [
        (QWEN3, THINKING, ["<think>\nOne and one.\n</think>\n\n", "2 < 3, and 3 > 2."]),
        (QWEN3, THINKING[4:], []),
        (QWEN3, TURNS, []),
        (CHATML, THINKING, ["2 < 3, and 3 > 2."]),
        (CHATML, [("system", "/no_think"), *TURNS], []),
        (WITHOUT_SYSTEM, [("system", "Be brief."), *TURNS], ["Be brief."]),
        (DEEPSEEK, [TURNS[0], ("assistant", "Hm. </think>\n 2.")], ["Hm. </think>\n "]),
        (REASONING, [*THINKING[2:4], CALLING, ("tool", "?!"), TURNS[1]], []),
        (MISTRAL, TURNS, []),
    ],
)
def test_what_a_template_leaves_out_of_the_messages_is_found(
    tokenizer: PreTrainedTokenizerFast, template: str, talk: list[Message], left_out: list[str]
) -> None:
    chat = ChatTemplate(tokenizer, template, [IM_END])
    assert chat.left_out(conversation(*talk)) == left_out


def test_reasoning_since_the_last_question_is_trained(tokenizer: PreTrainedTokenizerFast) -> None:
    first = {"role": "assistant", "content": "2", "reasoning_content": "One and one."}
    calling = CALLING | {"reasoning_content": "I look."}
    last = {"role": "assistant", "content": "Mild.", "reasoning_content": "12 is mild."}
    talk: list[Message] = [TURNS[0], first, ("user", "Weather?"), calling, ("tool", "12"), last]
    assert said(tokenizer, REASONING, talk) == [
        f"2{IM_END}",
        f'<think>\nI look.\n</think>\n\n<tool_call>{{"city": "東京"}}</tool_call>{IM_END}',
        f"<think>\n12 is mild.\n</think>\n\nMild.{IM_END}",
    ]


@pytest.mark.parametrize("template", [QWEN3, REASONING])
def test_empty_reasoning_of_a_row_is_trained_and_that_of_a_template_is_not(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    empty = "<think>\n\n</think>\n\n"
    assert said(tokenizer, template, [TURNS[0], ("assistant", f"{empty}2")]) == [
        f"{empty}2{IM_END}"
    ]
    assert said(tokenizer, template, [TURNS[0], ("assistant", "2")]) == [f"2{IM_END}"]


def test_of_a_call_with_empty_reasoning_in_front_the_call_alone_is_trained(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    template = (Path(__file__).parents[2] / "stock_templates/qwen3.jinja").read_text()
    empty = "<think>\n\n</think>\n\n"
    talk = [TURNS[0], CALLING]
    assert said(tokenizer, template, talk, tools=TOOLS) == [CALL_TEXT + IM_END]
    text = ChatTemplate(tokenizer, template, [IM_END]).render(conversation(*talk)).text
    assert text.endswith(f"assistant\n{empty}{CALL_TEXT}{IM_END}\n")


def test_a_template_that_renders_one_of_two_calls_is_refused(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    twice = CALLING | {"tool_calls": [CALL, CALL]}
    with pytest.raises(RowError) as caught:
        said(special(tokenizer, *OSS), GPT_OSS, [CALLED[0], twice, *CALLED[2:]], "<|return|>")
    assert caught.value.problem == "the chat template leaves out the tool call 2 of message 2"


def test_a_turn_may_be_reasoning_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    last = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    talk: list[Message] = [TURNS[0], last]
    assert said(tokenizer, REASONING, talk) == [f"<think>\nHm.\n</think>\n\n{IM_END}"]


@pytest.mark.parametrize("template", [CHATML, MARKED, DEEPSEEK])
def test_a_template_that_leaves_out_the_last_turn_s_reasoning_is_refused(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    last = {"role": "assistant", "content": "non.", "reasoning_content": "Hm."}
    with pytest.raises(RowError) as caught:
        said(tokenizer, template, [*TURNS[:3], last])
    assert caught.value.problem == "the chat template leaves out the reasoning of message 4"
    assert caught.value.remedy == (
        "set a data.chat_template that renders it, or remove it from the row"
    )
    # Of earlier turns, reasoning may be forgotten.
    said(tokenizer, template, [*TURNS[:1], last, *TURNS[2:]])


def test_a_turn_begins_with_the_answer_where_the_prompt_is_not_in_the_text(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert said(tokenizer, DEEPSEEK, TURNS) == [f"2{IM_END}", f"non, 東京 🐍.{IM_END}"]


def test_of_two_answers_in_a_row_the_last_alone_may_stop(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    talk = [*TURNS[:3], ("assistant", "non,"), ("assistant", "or yes.")]
    assert said(tokenizer, ONLY_THE_LAST_STOPS, talk) == [
        f"2{IM_END}",
        "non,",
        f"or yes.{IM_END}",
    ]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["found", "marked"])
@pytest.mark.parametrize("unweighted", [0, 1])
def test_turns_of_no_weight_are_not_trained(
    tokenizer: PreTrainedTokenizerFast, template: str, unweighted: int
) -> None:
    talk: list[Message] = [dict(zip(("role", "content"), turn, strict=True)) for turn in TURNS]
    turn = talk[2 * unweighted + 1]
    assert isinstance(turn, dict)
    turn["weight"] = 0
    spans = [f"2{IM_END}", f"non, 東京 🐍.{IM_END}"]
    del spans[unweighted]
    assert said(tokenizer, template, talk) == spans


@pytest.mark.parametrize(
    ("template", "begins"),
    [(CHATML, "<|im_start|>assistant\n"), (MARKED, "")],
    ids=["found", "marked"],
)
def test_the_reference_of_a_prompt_is_the_last_answer_that_is_trained(
    tokenizer: PreTrainedTokenizerFast, template: str, begins: str
) -> None:
    last = {"role": "assistant", "content": "non.", "weight": 0}
    document = conversation(*TURNS[:3], last)
    prompt, reference = ChatTemplate(tokenizer, template, [IM_END]).prompt(document)
    assert prompt == "<|im_start|>user\nTwo?<|im_end|>\n" + begins
    assert reference == "2"


def test_today_is_a_fixed_day(tokenizer: PreTrainedTokenizerFast) -> None:
    template = "{{ strftime_now('%d %b %Y') + '\n' }}" + CHATML
    text = ChatTemplate(tokenizer, template, [IM_END]).render(conversation(*TURNS)).text
    assert text.startswith("26 Jul 2024\n<|im_start|>")


@pytest.mark.parametrize(
    "body", [IM_END, f"a{IM_END}\nb", f"{IM_END}\n<|im_start|>assistant\nno", f"a{IM_END}{IM_END}"]
)
def test_a_stop_token_that_is_said_does_not_end_the_turn(
    tokenizer: PreTrainedTokenizerFast, body: str
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": body, "b": 1}}}
    talk: list[Message] = [
        ("user", body),
        ("assistant", body),
        ("user", body),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        ("tool", body),
        ("assistant", body),
    ]
    first, calling, last = said(tokenizer, CHATML, talk)
    assert first == last == body + IM_END
    assert calling.lstrip().startswith('<tool_call>\n{"name": "f", ')
    assert calling.endswith(f', "b": 1}}}}\n</tool_call>{IM_END}')
