"""Where in a rendered conversation each message stands, found by changing it.

A template is a program: which characters a message became can only be asked of it. So a message
is rendered again with something else in its place, and what changes in the text is what it became.
Comparing prefixes alone would not do: many templates write earlier turns otherwise than the last.
"""

import copy
from collections.abc import Callable
from typing import Any

from moray.corpus.document import RowError

Messages = list[dict[str, Any]]
Render = Callable[..., str]
"""Takes messages, and whether to add the prompt for the assistant's next turn."""

# Letters and digits alone, which no template changes.
STAND_IN = "5zQmorayStandsInHere5zQ"

_MARK = "mark what the assistant says with {% generation %} in data.chat_template"


def said_at(render: Render, messages: Messages, number: int, text: str) -> tuple[int, int]:
    """From and to which character the text says what a message says.

    Of a tool's call, these are the arguments: its name may be said again by the answer. Of the last
    turn, reasoning is a part.

    Args:
        render: the template.
        messages: of the conversation.
        number: of the message.
        text: what the template makes of the messages.

    Raises:
        RowError: if the template leaves it out.
    """
    starts, ends = [], []
    for part, other in _others(messages, number):
        changed = render(other)
        if STAND_IN not in changed:
            raise RowError(
                f"got a chat template that leaves out the {part} of message {number + 1}, "
                "expected all that is said",
                "give a data.chat_template that renders it, or remove it from the row",
            )
        # What is said may begin or end as its stand-in does.
        start = _common(text, changed.partition(STAND_IN)[0])
        starts.append(start)
        ends.append(len(text) - _common(text[start:][::-1], changed.rpartition(STAND_IN)[2][::-1]))
    return min(starts), max(ends)


def turn_start(render: Render, messages: Messages, number: int, text: str, latest: int) -> int:
    """From which character the assistant's turn is its own.

    That is behind the prompt that asks for it, if the text has that; else, where the text changes
    if the assistant says something else; else behind the messages before it.

    Args:
        render: the template.
        messages: of the conversation.
        number: of the turn's message.
        text: what the template makes of the messages.
        latest: what it says begins here.

    Raises:
        RowError: if the template doesn't show it.
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
    raise RowError(
        f"got a chat template that doesn't show where message {number + 1} begins", _MARK
    )


def _others(messages: Messages, number: int) -> list[tuple[str, Messages]]:
    """The conversation with something else said in a message, once for each part of it."""
    message = messages[number]
    others = []
    if message.get("content") or not message.get("tool_calls"):
        other = copy.deepcopy(messages)
        other[number]["content"] = STAND_IN
        others.append(("text", other))
    if message.get("tool_calls"):
        # All else stays: templates check names and numbers of calls.
        other = copy.deepcopy(messages)
        for call in other[number]["tool_calls"]:
            call["function"]["arguments"] = {STAND_IN: STAND_IN}
        others.append(("tool calls", other))
    # Templates leave out reasoning that came before the last question: generation would, too.
    answered = any(after["role"] in ("user", "assistant") for after in messages[number + 1 :])
    if message.get("reasoning_content") and not answered:
        other = copy.deepcopy(messages)
        other[number]["reasoning_content"] = STAND_IN
        others.append(("reasoning", other))
    return others


def _or_none(render: Render, messages: Messages, **options: Any) -> str | None:
    """What a template makes of a part of a conversation, which it may refuse."""
    try:
        return render(messages, **options)
    except RowError:
        return None


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    if one.startswith(other):
        return len(other)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
