"""Find where each message is in a rendered conversation, by changing it.

A template is a program, so the position of a message in its output can't be read off the template.
Instead, the conversation is rendered again with another text in place of the message; the part of
the output that changes is the message. Comparing the renderings of prefixes wouldn't be enough:
many templates render earlier turns differently from the last.
"""

import copy
from collections.abc import Callable
from typing import Any

from moray.corpus.document import RowError

Messages = list[dict[str, Any]]
Render = Callable[..., str]
"""Takes messages, and whether to add the prompt for the assistant's next turn."""

# Only letters and digits, which no template changes.
STAND_IN = "5zQmorayStandsInHere5zQ"

_MARK = "mark the assistant's turns with {% generation %} in data.chat_template"


def said_at(render: Render, messages: Messages, number: int, text: str) -> tuple[int, int]:
    """Find the start and end, in characters, of a message's content in the rendered text.

    For a tool call, only the arguments count, because the tool's answer may repeat the name. In
    the last turn, reasoning is part of the content.

    Args:
        render: the template.
        messages: the messages of the conversation.
        number: index of the message.
        text: the rendered conversation.

    Raises:
        RowError: if the template leaves the message out.
    """
    starts, ends = [], []
    for part, other in _others(messages, number):
        changed = render(other)
        if STAND_IN not in changed:
            raise RowError(
                f"the chat template leaves out the {part} of message {number + 1}",
                "set a data.chat_template that renders it, or remove it from the row",
            )
        # The content may begin or end with the same characters as its stand-in.
        start = _common(text, changed.partition(STAND_IN)[0])
        starts.append(start)
        ends.append(len(text) - _common(text[start:][::-1], changed.rpartition(STAND_IN)[2][::-1]))
    return min(starts), max(ends)


def turn_start(render: Render, messages: Messages, number: int, text: str, latest: int) -> int:
    """Find where the assistant's part of a turn starts in the rendered text, in characters.

    It starts after the generation prompt, if the text contains it; otherwise, where the text
    changes if the assistant's message is replaced; otherwise, after the preceding messages.

    Args:
        render: the template.
        messages: the messages of the conversation.
        number: index of the turn's message.
        text: the rendered conversation.
        latest: where the message's content starts, an upper bound.

    Raises:
        RowError: if the start can't be determined.
    """
    before = _or_none(render, messages[:number])
    prompt = _or_none(render, messages[:number], add_generation_prompt=True)
    if prompt != before and prompt and text.startswith(prompt) and len(prompt) <= latest:
        return len(prompt)
    plain = [dict(message) for message in messages]
    plain[number] = {"role": "assistant", "content": STAND_IN}
    changed = _or_none(render, plain)
    if changed and changed.count(STAND_IN) == 1:
        return min(latest, _common(text, changed.partition(STAND_IN)[0]))
    if before and text.startswith(before) and len(before) <= latest:
        return len(before)
    raise RowError(f"can't tell where the chat template begins message {number + 1}", _MARK)


def _others(messages: Messages, number: int) -> list[tuple[str, Messages]]:
    """Copies of the conversation, each with one part of a message replaced."""
    message = messages[number]
    others = []
    if message.get("content") or not message.get("tool_calls"):
        other = copy.deepcopy(messages)
        other[number]["content"] = STAND_IN
        others.append(("text", other))
    if message.get("tool_calls"):
        # Only the arguments change: templates check the names and the number of calls.
        other = copy.deepcopy(messages)
        for call in other[number]["tool_calls"]:
            call["function"]["arguments"] = {STAND_IN: STAND_IN}
        others.append(("tool calls", other))
    # Templates leave out reasoning from before the last question, as in generation.
    answered = any(after["role"] in ("user", "assistant") for after in messages[number + 1 :])
    if message.get("reasoning_content") and not answered:
        other = copy.deepcopy(messages)
        other[number]["reasoning_content"] = STAND_IN
        others.append(("reasoning", other))
    return others


def _or_none(render: Render, messages: Messages, **options: Any) -> str | None:
    """Part of a conversation as text; None if the template refuses it."""
    try:
        return render(messages, **options)
    except RowError:
        return None


def _common(one: str, other: str) -> int:
    """Length of the common prefix of two texts."""
    if one.startswith(other):
        return len(other)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
