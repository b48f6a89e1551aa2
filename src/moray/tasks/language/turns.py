"""Places of a conversation's messages in the text that a chat template makes of it.

A template is a program, so the position of a message in its output can't be read off the template.
Instead, the conversation is rendered again with another text in place of the message; the part of
the output that changes is the message. Comparing the renderings of prefixes wouldn't be enough:
many templates render earlier turns differently from the last.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moray.corpus.dataset import RowError

Messages = list[dict[str, Any]]
Render = Callable[..., str]
"""Takes messages, and whether to add the prompt for the assistant's next turn."""

# Only letters and digits, which no template changes.
STAND_IN = "5zQmorayStandsInHere5zQ"

_TAG_AT_END = re.compile(r"<\w+>\s*\Z")

_MARK = "mark the assistant's turns with {% generation %} in data.chat_template"


@dataclass(frozen=True)
class Start:
    """The start of the assistant's part of a turn, in characters.

    Attributes:
        place: where the assistant goes on, behind the generation prompt.
        header: where the preceding messages end; `place` if that isn't known.
        prompt_end: what the generation prompt ends in and the text doesn't have, with the tag in
            front of it; mostly empty.
        has_prompt: whether the text has the generation prompt.
    """

    place: int
    header: int
    prompt_end: str = ""
    has_prompt: bool = False


def content_span(render: Render, messages: Messages, number: int, text: str) -> tuple[int, int]:
    """Find the start and end, in characters, of a message's content in the rendered text.

    For a tool call, only the arguments count, because the tool's answer may repeat the name. In
    the last turn, reasoning is part of the content.

    Raises:
        RowError: if the template leaves the message out.
    """
    starts, ends = [], []
    for part, other in _others(messages, number):
        rendered = render(other)
        if STAND_IN not in rendered:
            raise RowError(
                f"the chat template leaves out the {part} of message {number + 1}",
                "set a data.chat_template that renders it, or remove it from the row",
            )
        # The content may begin or end with the same characters as its stand-in.
        start = _common(text, rendered.partition(STAND_IN)[0])
        starts.append(start)
        ends.append(len(text) - _common(text[start:][::-1], rendered.rpartition(STAND_IN)[2][::-1]))
    return min(starts), max(ends)


def turn_start(
    render: Render, messages: Messages, number: int, text: str, content: tuple[int, int]
) -> Start:
    """Find where the assistant's part of a turn starts in the rendered text.

    It starts after the generation prompt, if the text contains it; otherwise, where the text
    changes if the assistant's message is replaced; otherwise, after the preceding messages. It is
    at most where the message's content starts, unless the prompt has the beginning of it, such as
    a tag.

    Args:
        content: start and end of the message's content.

    Raises:
        RowError: if the start can't be determined.
    """
    latest, end = content
    before = render_or_none(render, messages[:number])
    header = len(before) if before is not None and text.startswith(before) else None
    prompt = render_or_none(render, messages[:number], add_generation_prompt=True)
    prompt_end = ""
    if prompt and prompt != before:
        if text.startswith(prompt) and len(prompt) <= end:
            header = len(prompt) if header is None else header
            return Start(len(prompt), header, has_prompt=True)
        # If the text before differs too, the rest has text of the conversation.
        if header is not None and prompt.startswith(text[:header]):
            same = _common(text, prompt)
            # A tag says more than the white space behind it.
            tag = _TAG_AT_END.search(prompt, 0, same)
            prompt_end = prompt[tag.start() if tag and same < len(prompt) else same :]
    plain = [dict(message) for message in messages]
    plain[number] = {"role": "assistant", "content": STAND_IN}
    rendered = render_or_none(render, plain)
    if rendered and rendered.count(STAND_IN) == 1:
        place = min(latest, _common(text, rendered.partition(STAND_IN)[0]))
        # If no prompt has the space in front of the answer, the model has to write it too.
        if prompt == before and header is not None and text[header:place].isspace():
            place = header
    elif header and header <= latest:
        place = header
    else:
        raise RowError(f"can't tell where the chat template begins message {number + 1}", _MARK)
    return Start(place, place if header is None else min(header, place), prompt_end)


def start_behind_reasoning(
    render: Render, messages: Messages, number: int, text: str, start: int, latest: int
) -> int:
    """The start of a turn's own text, behind a block of reasoning that the row doesn't have.

    Some templates put such a block, `<think>` and `</think>` with nothing between, in front of an
    answer without reasoning. It is recognised by the text that is rendered for an answer with
    reasoning: without the reasoning, both are the same.

    Returns:
        The end of the block, or `start` if there is none. At most `latest`.
    """
    message = messages[number]
    content = message.get("content") or ""
    if start == latest or message.get("reasoning_content"):
        return start
    end = latest
    if message.get("tool_calls"):
        # The text of the answer is, or would be, in front of the call.
        rendered = render_or_none(render, _with(messages, number, content=STAND_IN))
        end = _common(text, (rendered or "").partition(STAND_IN)[0])
    block = squeeze(text[start:end])
    if not start < end <= latest or not block or block in squeeze(content):
        return start
    thinking = f"<think>\n{STAND_IN}\n</think>\n\n{content}"
    for other in ({"reasoning_content": STAND_IN}, {"content": thinking}):
        rendered = render_or_none(render, _with(messages, number, **other))
        if not rendered or not start <= rendered.find(STAND_IN) <= end:
            continue
        if squeeze(rendered).replace(STAND_IN, "") == squeeze(text):
            return end
    return start


def other_messages(
    render: Render, messages: Messages, text: str
) -> tuple[list[tuple[str, int, int]], bool]:
    """Role, start and end, in characters, of the messages that aren't the assistant's.

    Those whose text the template changes, and those behind them, are not among them.

    Returns:
        The messages, and whether the template leaves any out.
    """
    others = [
        (message["role"], message["content"])
        for message in messages
        if message["role"] != "assistant" and message.get("content")
    ]
    stand_ins = [
        message
        if message["role"] == "assistant" or not message.get("content")
        else {**message, "content": STAND_IN}
        for message in messages
    ]
    spans: list[tuple[str, int, int]] = []
    if (rendered := render_or_none(render, stand_ins)) is None:
        return spans, False
    before, *behind = rendered.split(STAND_IN)
    if len(behind) != len(others) or not text.startswith(before):
        return spans, len(behind) < len(others)
    place = len(before)
    for (role, content), following in zip(others, behind, strict=True):
        # Templates often strip what is said.
        forms = (content, content.strip(), content.lstrip(), content.rstrip())
        form = next((form for form in forms if text.startswith(form + following, place)), None)
        if form is None:
            break
        spans.append((role, place, place + len(form)))
        place += len(form) + len(following)
    return spans, False


def render_or_none(render: Render, messages: Messages, **options: Any) -> str | None:
    """Part of a conversation as text; None if the template refuses it."""
    try:
        return render(messages, **options)
    except RowError:
        return None


def squeeze(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())


def _with(messages: Messages, number: int, **parts: str) -> Messages:
    """The conversation with other parts of one message."""
    return [
        {**message, **parts} if place == number else message
        for place, message in enumerate(messages)
    ]


def _others(messages: Messages, number: int) -> list[tuple[str, Messages]]:
    """Copies of the conversation, each with one part of a message replaced."""
    message = messages[number]
    others = []
    if message.get("content") or not message.get("tool_calls"):
        others.append(("text", _with(messages, number, content=STAND_IN)))
    calls = message.get("tool_calls") or []
    for place in range(len(calls)):
        # Only the arguments change: templates check the names and the number of calls.
        other = copy.deepcopy(messages)
        other[number]["tool_calls"][place]["function"]["arguments"] = {STAND_IN: STAND_IN}
        others.append((f"tool call {place + 1}" if len(calls) > 1 else "tool calls", other))
    # Templates leave out reasoning from before the last question, as in generation.
    answered = any(after["role"] in ("user", "assistant") for after in messages[number + 1 :])
    if message.get("reasoning_content") and not answered:
        others.append(("reasoning", _with(messages, number, reasoning_content=STAND_IN)))
    return others


def _common(one: str, other: str) -> int:
    """Length of the common prefix of two texts."""
    if one.startswith(other):
        return len(other)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
