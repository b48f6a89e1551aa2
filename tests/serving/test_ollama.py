"""Chat templates of Jinja written in Go for Ollama."""

import re
from typing import Any

import pytest
from conversations import CHATML, MARKED
from transformers.utils.chat_template_utils import render_jinja_template

from moray.serving.ollama import Around, Render, around, modelfile

ZEPHYR = """{% for message in messages %}<|{{ message.role }}|>
{{ message.content }}</s>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
BRACES = """<s>{% for message in messages %}{{ '{{' + message.role + '}}' + message.content }}
{{ '\\n' }}{%- endfor %}{% if add_generation_prompt %}{{ '{{assistant}}' }}{% endif %}"""
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

USER = {"role": "user", "content": "How are {you}?"}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "Well.\nAnd you?"},
    {"role": "user", "content": "Well too."},
]


def renderer(template: str) -> Render:
    def render(messages: list[dict[str, Any]], generation: bool) -> str:
        (text,), _ = render_jinja_template(
            conversations=[messages], chat_template=template, add_generation_prompt=generation
        )
        return str(text)

    return render


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


@pytest.mark.parametrize("template", [CHATML, MARKED, ZEPHYR, BRACES])
def test_ollama_renders_what_the_template_of_the_model_renders(template: str) -> None:
    render = renderer(template)
    go = template_of(modelfile("weights.gguf", around(render), None, []))
    for messages in ([USER], CONVERSATION[1:], CONVERSATION):
        assert in_go(go, messages) == render(messages, True)


def test_a_template_that_refuses_system_messages_has_none() -> None:
    render = renderer(NO_SYSTEM)
    found = around(render)
    assert found
    assert found.system is None
    go = template_of(modelfile("weights.gguf", found, None, []))
    assert in_go(go, CONVERSATION[1:]) == render(CONVERSATION[1:], True)
    assert '"system"' not in go


@pytest.mark.parametrize("template", [LLAMA_2, COUNTING])
def test_a_template_that_does_more_than_put_text_around_messages_is_left_out(
    template: str,
) -> None:
    assert around(renderer(template)) is None
    assert modelfile("weights.gguf", None, "<s>", ["</s>"]) == (
        'FROM ./weights.gguf\nPARAMETER stop "</s>"\n'
    )


def test_the_token_that_llama_cpp_adds_is_not_there_twice() -> None:
    found = around(renderer(BRACES))
    assert isinstance(found, Around)
    assert found.opening == "<s>"
    assert not template_of(modelfile("weights.gguf", found, "<s>", [])).startswith("<s>")
