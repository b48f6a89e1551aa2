"""Conversations, templates for them, and a tokenizer that knows their special tokens."""

import json
from typing import Any

from transformers import PreTrainedTokenizerFast

from moray.corpus.dataset import Document
from moray.tasks.language.scratch import train_tokenizer

SPECIAL = ["<|im_start|>", "<|im_end|>"]

# As Qwen2.5 has it, in fewer words.
CHATML = """
{%- if tools %}
    {{- '<|im_start|>system\n' + messages[0].content + '\n# Tools' }}
    {%- for tool in tools %}
        {{- '\n' + tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content }}
        {{- '\n</tool_response><|im_end|>\n' }}
    {%- elif message.role != 'system' or not tools %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

# With tags around what the assistant says.
MARKED = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
"""

CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "東京"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]

Message = tuple[str, str] | dict[str, Any]

TURNS: list[Message] = [
    ("user", "Two?"),
    ("assistant", "2"),
    ("user", "naïve?"),
    ("assistant", "non, 東京 🐍."),
]


def conversation(*messages: Message, tools: list[dict[str, Any]] | None = None) -> Document:
    """A document of pairs of role and content, or of messages with more keys."""
    listed = [
        message
        if isinstance(message, dict)
        else dict(zip(("role", "content"), message, strict=True))
        for message in messages
    ]
    return Document(
        messages=json.dumps(listed, ensure_ascii=False), tools=json.dumps(tools) if tools else None
    )


TALKS = [
    conversation(
        ("system", "Be brief."),
        ("user", "naïve?"),
        ("assistant", "non"),
        ("user", "¿Y 東京?"),
        ("assistant", "都, 🐍 too.\n\nReally: 👩‍👩‍👧"),
    ),
    conversation(
        ("user", "x"),
        ("assistant", "  if x:\n    return ½"),
        ("user", ""),
        ("assistant", ""),
        ("user", "Straße"),
        ("assistant", " данные "),
    ),
    conversation(
        ("system", "Call."),
        ("user", "Weather?"),
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
        ("tool", "12 °C"),
        ("assistant", "12 °C → mild"),
        ("assistant", "Bye."),
        tools=TOOLS,
    ),
]
"""Three conversations of several turns."""

SAID = [
    ["non<|im_end|>", "都, 🐍 too.\n\nReally: 👩‍👩‍👧<|im_end|>"],
    ["  if x:\n    return ½<|im_end|>", "<|im_end|>", " данные <|im_end|>"],
    [
        'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "東京"}}\n</tool_call>'
        "<|im_end|>",
        "12 °C → mild<|im_end|>",
        "Bye.<|im_end|>",
    ],
]
"""What the assistant says in them by `CHATML`, stop tokens included."""


def chat_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer whose turns end in `<|im_end|>`; it has no template."""
    tokenizer = train_tokenizer(texts, 320)
    tokenizer.add_tokens(SPECIAL, special_tokens=True)
    tokenizer.eos_token = "<|im_end|>"
    return tokenizer
