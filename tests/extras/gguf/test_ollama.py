"""Chat templates of Jinja written in Go for Ollama."""

import re
from typing import Any

import pytest
from conversations import CHATML, MARKED
from transformers import PreTrainedTokenizerFast

from moray.extras.gguf.ollama import TextAround, modelfile, text_around
from moray.tasks.language.chat import ChatTemplate

ZEPHYR = """{% for message in messages %}<|{{ message.role }}|>
{{ message.content }}</s>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
BRACES = """<s>{% for message in messages %}{{ '{{' + message.role + '}}' + message.content }}
{{ '\\n' }}{%- endfor %}{% if add_generation_prompt %}{{ '{{assistant}}' }}{% endif %}"""
# The date is that of training, not today's.
DATED = "Today is {{ strftime_now('%d %b %Y') }}.\n" + ZEPHYR
NO_SYSTEM = """{% for message in messages %}{% if message.role == 'system' %}
{{ raise_exception('no system messages') }}{% endif %}[{{ message.role }}] {{ message.content }}
{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"""
# The system message is a part of what the user says first.
LLAMA_2 = """{% if messages[0].role == 'system' %}{% set system = messages[0].content %}
{%- set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}
{%- for message in messages %}{% if message.role == 'user' %}[INST] {% if loop.first and system %}
<<SYS>>{{ system }}<</SYS>>{% endif %}{{ message.content }} [/INST]{% else %}
{{- message.content }}</s>{% endif %}{% endfor %}"""
# Says how many messages there are.
COUNTING = "{{ messages | length }}{% for message in messages %}{{ message.content }}{% endfor %}"
QUOTES = ZEPHYR.replace("<|", '"""<|')

USER = {"role": "user", "content": "How are {you}?"}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "Well.\nAnd you?"},
    {"role": "user", "content": "Well too."},
]


def chat(tokenizer: PreTrainedTokenizerFast, template: str) -> ChatTemplate:
    return ChatTemplate(tokenizer, template, ["</s>"])


def found_in(template: ChatTemplate) -> TextAround | None:
    return text_around(template.text, template.before_answer)


def in_go(template: str, messages: list[dict[str, Any]]) -> str:
    """What Go makes of the part of its templates that is used here."""
    parts = re.fullmatch(
        r"(.*)\{\{ range \.Messages \}\}(.*)\{\{ end \}\}\{\{ end \}\}(.*)", template, re.DOTALL
    )
    assert parts
    head, body, tail = parts.groups()
    cases = re.split(r'\{\{ (?:else )?if eq \.Role "(\w+)" \}\}', body)
    assert cases[0] == ""
    of_role = dict(zip(cases[1::2], cases[2::2], strict=True))
    said = "".join(
        of_role[each["role"]].replace("{{ .Content }}", each["content"]) for each in messages
    )
    return f"{head}{said}{tail}".replace('{{ "{{" }}', "{{")


def template_of(text: str) -> str:
    found = re.search(r'TEMPLATE """(.*?)"""', text, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.parametrize("template", [CHATML, MARKED, ZEPHYR, BRACES, DATED])
def test_ollama_renders_what_the_model_was_trained_with(
    template: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    trained = chat(tokenizer, template)
    go = template_of(modelfile("weights.gguf", found_in(trained), None, []))
    for messages in ([USER], CONVERSATION[1:], CONVERSATION):
        assert in_go(go, messages) == trained.before_answer(messages)


def test_a_template_that_refuses_system_messages_has_none(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    trained = chat(tokenizer, NO_SYSTEM)
    found = found_in(trained)
    assert found
    assert found.system is None
    go = template_of(modelfile("weights.gguf", found, None, []))
    assert in_go(go, CONVERSATION[1:]) == trained.before_answer(CONVERSATION[1:])
    assert '"system"' not in go


@pytest.mark.parametrize("template", [LLAMA_2, COUNTING, QUOTES])
def test_a_template_that_does_more_than_put_text_around_messages_is_left_out(
    template: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert found_in(chat(tokenizer, template)) is None
    assert modelfile("weights.gguf", None, "<s>", ["</s>"]) == (
        'FROM ./weights.gguf\nPARAMETER stop "</s>"\n'
    )


def test_the_token_that_llama_cpp_adds_is_not_there_twice(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    found = found_in(chat(tokenizer, BRACES))
    assert isinstance(found, TextAround)
    assert found.opening == "<s>"
    assert not template_of(modelfile("weights.gguf", found, "<s>", [])).startswith("<s>")
