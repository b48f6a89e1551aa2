"""Which text of a conversation is trained, by the templates that models have."""

from pathlib import Path
from typing import Any

import pytest
from conversations import (
    CALL,
    CHATML,
    MARKED,
    SAID,
    TALKS,
    TOOLS,
    TURNS,
    Message,
    chat_tokenizer,
    conversation,
)
from transformers import PreTrainedTokenizerFast
from turn_templates import QWEN3

from moray.corpus.dataset import Document, RowError
from moray.errors import UserError
from moray.tasks.language.chat import ChatTemplate

LLAMA2 = """
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{%- if message.role == 'user' -%}
{{ bos_token + '[INST] ' + message.content.strip() + ' [/INST]' }}
{%- else -%}
{{ ' ' + message.content.strip() + ' ' + eos_token }}
{%- endif -%}
{%- endfor -%}
"""

LLAMA3 = """
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
    {%- if message.tool_calls %}
        {{- message.tool_calls[0].function | tojson + '<|eom_id|>' }}
    {%- else %}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

GEMMA = """
{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\n' }}
{%- endif %}
"""

STOP_UNMARKED = MARKED.replace(
    "{{- message.content + '<|im_end|>' }}\n        {%- endgeneration %}",
    "{{- message.content }}\n        {%- endgeneration %}{{- '<|im_end|>' }}",
)
NEVER_STOPS = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
STOPS_AT_THE_END = NEVER_STOPS + "<|im_end|>"
STOPS_BEHIND_THE_NEXT_NAME = (
    "{% for m in messages %}{{ m.content + '\nuser:' + '<|im_end|>' }}{% endfor %}"
)
DROPS_CONTENT = "{% for m in messages %}{{ m.role + '<|im_end|>' }}{% endfor %}"
MARKS_NOTHING = (
    "{% for m in messages %}{{ m.content }}"
    "{% if m.role == 'bot' %}{% generation %}<|im_end|>{% endgeneration %}{% endif %}{% endfor %}"
)

THOUGHT: list[Message] = [
    ("user", "Two?"),
    ("assistant", "<think>\none and one\n</think>\n\n2"),
    ("user", "Three?"),
    ("assistant", "<think>\ntwo and one\n</think>\n\n3"),
]


def chat(
    tokenizer: PreTrainedTokenizerFast,
    template: str | None,
    stops: tuple[str, ...] = ("<|im_end|>",),
) -> ChatTemplate:
    return ChatTemplate(tokenizer, template, list(stops))


def said(template: ChatTemplate, document: Document) -> list[str]:
    """The text of each span."""
    rendered = template.render(document)
    return [rendered.text[start:end] for start, end in rendered.spans]


@pytest.mark.parametrize(("talk", "expected"), zip(TALKS, SAID, strict=True))
def test_by_chatml_what_the_assistant_says_is_trained_tool_calls_too(
    tokenizer: PreTrainedTokenizerFast, talk: Document, expected: list[str]
) -> None:
    assert said(chat(tokenizer, CHATML), talk) == expected


END = "<|endoftext|>"  # first and stop token of the tests' tokenizer
EOT, EOM = "<|eot_id|>", "<|eom_id|>"
TEMPLATES: dict[str, tuple[str, tuple[str, ...], list[Message], list[str]]] = {
    "Llama 2, whose answers stand between spaces": (
        LLAMA2, (END,), TURNS, [f" 2 {END}", f" non, 東京 🐍. {END}"],
    ),
    "Llama 3": (LLAMA3, (EOT, EOM), TURNS, [f"2{EOT}", f"non, 東京 🐍.{EOT}"]),
    "Llama 3, which stops otherwise behind a call": (
        LLAMA3,
        (EOT, EOM),
        [
            ("user", "?"), {"role": "assistant", "content": "", "tool_calls": [CALL]},
            ("tool", "12"), ("assistant", "Mild"),
        ],
        ['{"name": "weather", "arguments": {"city": "東京"}}<|eom_id|>', "Mild<|eot_id|>"],
    ),
    "Gemma, whose turns end in a second stop token": (
        GEMMA,
        (END, "<end_of_turn>"),
        TURNS,
        ["2<end_of_turn>", "non, 東京 🐍.<end_of_turn>"],
    ),
    "generation tags": (
        MARKED, ("<|im_end|>",), TURNS, ["2<|im_end|>", "non, 東京 🐍.<|im_end|>"],
    ),
    "an answer that repeats its question and its stop": (
        CHATML,
        ("<|im_end|>",),
        [("user", "a\nuser\na"), ("assistant", "a\nuser\na"), ("assistant", "\nassistant")],
        ["a\nuser\na<|im_end|>", "\nassistant<|im_end|>"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_the_assistant_says_is_trained_and_a_stop_token_behind_it(
    tokenizer: PreTrainedTokenizerFast, name: str
) -> None:
    template, stops, messages, expected = TEMPLATES[name]
    assert said(chat(tokenizer, template, stops), conversation(*messages)) == expected


@pytest.mark.parametrize(
    "template", [STOP_UNMARKED, NEVER_STOPS, STOPS_AT_THE_END, STOPS_BEHIND_THE_NEXT_NAME]
)
def test_a_template_by_which_nothing_learns_to_stop_is_refused(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    with pytest.raises(UserError, match=r"\(<\|im_end\|>\) after them; add \{\{ eos") as caught:
        chat(tokenizer, template).render(conversation(*TURNS))
    assert caught.value.path == "data.chat_template"


def test_no_template_anywhere_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match=r"^data\.chat_template: is not set, and the tokenizer has"):
        chat(tokenizer, None)


FAILURES = {
    LLAMA2: "TemplateError: Conversation roles must alternate",
    DROPS_CONTENT: "leaves out the text of message 2",
    MARKS_NOTHING: "marks 0 assistant turns, expected 2",
    "{{ messages[9].content.strip() }}": "UndefinedError: ",
    "{% for": "TemplateSyntaxError: ",
    "{{ 1 / 0 }}": "ZeroDivisionError: ",
    "{% for n in range(10**9) %}{% endfor %}": "OverflowError: ",
}


@pytest.mark.parametrize("template", FAILURES)
def test_a_conversation_that_the_template_cannot_take_is_reported_with_the_reason(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    twice: list[Message] = [("user", "?"), ("assistant", "yes"), ("assistant", "and no")]
    with pytest.raises(RowError) as caught:
        chat(tokenizer, template).render(conversation(*twice))
    assert FAILURES[template] in caught.value.problem
    assert "\n" not in caught.value.problem
    assert said(chat(tokenizer, CHATML), conversation(*twice)) == [
        "yes<|im_end|>",
        "and no<|im_end|>",
    ]


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system(PROGRAM) }}",
    "{{ raise_exception.__globals__['__builtins__']['__import__']('os').system(PROGRAM) }}",
    "{{ (messages | attr('__class__')).__base__.__subclasses__() }}",
    "{{ messages.append(messages[0]) }}",
]


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_template_cannot_reach_out_of_its_text(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, escape: str
) -> None:
    program = f"touch {tmp_path}/reached"
    template = escape.replace("PROGRAM", repr(program)) + CHATML
    with pytest.raises(RowError, match=r"template fails \((Security|Undefined)Error"):
        chat(tokenizer, template).render(conversation(*TURNS))
    assert list(tmp_path.iterdir()) == []


def test_of_several_templates_that_for_tools_is_taken_where_there_are_tools(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    several = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, bos_token=END, eos_token=END
    )
    several.chat_template = {"default": MARKED, "tool_use": "with tools" + CHATML}
    plain = [("user", "?"), ("assistant", "yes")]
    text = chat(several, None).render(conversation(*plain)).text
    with_tools = chat(several, None).render(conversation(*plain, tools=TOOLS)).text
    assert text.startswith("<|im_start|>user")
    assert with_tools.startswith("with tools<|im_start|>system")


@pytest.mark.parametrize(
    ("template", "stops"),
    [(CHATML, ("<|im_end|>",)), (LLAMA3, (EOT, EOM)), (GEMMA, ("<end_of_turn>",))],
)
def test_a_prompt_is_what_stands_before_the_last_answer(
    tokenizer: PreTrainedTokenizerFast, template: str, stops: tuple[str, ...]
) -> None:
    one, document = chat(tokenizer, template, stops), conversation(*TURNS)
    prompt, reference = one.prompt(document)
    whole = one.render(document).text
    assert whole.startswith(prompt + reference)
    assert prompt.endswith(("assistant\n", "assistant<|end_header_id|>\n\n", "model\n"))
    assert "2" in prompt
    assert reference == "non, 東京 🐍."


def test_a_prompt_is_rendered_as_when_it_is_asked(tokenizer: PreTrainedTokenizerFast) -> None:
    """With what the template writes for a model to go on, be it another thing than in training."""
    one = chat(tokenizer, QWEN3)
    prompt, reference = one.prompt(conversation(*THOUGHT))
    assert prompt == (
        "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\nThree?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert reference == "<think>\ntwo and one\n</think>\n\n3"


def test_a_prompt_has_the_tools_and_ends_before_the_last_of_two_answers(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tools: dict[str, Any] = {"tools": TOOLS}
    talk = conversation(
        ("system", "S"), ("assistant", "a"), ("user", "?"), ("assistant", "b"), **tools
    )
    prompt, _ = chat(tokenizer, CHATML).prompt(talk)
    assert '"weather"' in prompt
    assert prompt.endswith("<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n")


def test_tags_side_by_side_are_of_one_turn(texts: list[str]) -> None:
    """As in a template that tags the last turn's end-of-text token by itself."""
    last = "{% generation %}{{ '<|endoftext|>' }}{% endgeneration %}"
    tagged = MARKED.replace("{{- '\n' }}\n{%- endfor %}", f"{{%- endfor %}}{last}")
    assert tagged != MARKED
    chat = ChatTemplate(chat_tokenizer(texts), tagged, ["<|im_end|>", "<|endoftext|>"])
    rendered = chat.render(conversation(*TURNS))
    said = [rendered.text[start:end] for start, end in rendered.spans]
    assert said == ["2<|im_end|>", "non, 東京 🐍.<|im_end|><|endoftext|>"]
