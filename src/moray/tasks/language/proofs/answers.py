"""Answers of conversations, by the chat template alone: those in rows of their own, and prompts.

Nothing here is shared with what made the tokens, so that a mistake there shows here.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.corpus.dataset import Document

Piece = tuple[NDArray[Any], NDArray[np.bool_]]
"""Tokens of a part of a document, and whether each is trained, both of shape (length,)."""


def answers_alone(
    document: Document,
    pieces: Sequence[Piece],
    forms: Callable[[Document], Iterable[list[int]]],
    length: int,
    only_last: bool,
) -> Iterator[tuple[Document, list[Piece]]]:
    """A conversation as rows by hand, each up to one trained answer, with the piece of each.

    Args:
        forms: makes the tokens that a conversation can have.
        length: of a row. Conversations with an answer that was cut or dropped aren't compared.
    """
    messages = json.loads(document["messages"])
    ends = [number + 1 for number in _trained(messages)][-1 if only_last else 0 :]
    rows: list[Document] = [{**document, "messages": json.dumps(messages[:end])} for end in ends]
    expected = [list(forms(row)) for row in rows]
    if any(len(form) > length for some in expected for form in some):
        return
    if len(rows) != len(pieces):
        yield rows[-1], list(pieces)
        return
    left = list(pieces)
    for row, some in zip(rows, expected, strict=True):
        places = (place for place, (ids, _) in enumerate(left) if ids.tolist() in some)
        yield row, [left.pop(next(places, 0))]


def text_before_answer(
    document: Document,
    pieces: Sequence[Piece],
    render: Callable[..., str],
    decode: Callable[[list[int]], str],
    is_trained: bool,
) -> tuple[str, str] | None:
    """What stands between the prompt of a conversation's last answer and that answer.

    Args:
        render: the chat template by itself.
        is_trained: whether the part that is trained is meant, or the part that isn't.

    Returns:
        The stored text, and that of the template; None if there is none, or it isn't known.
    """
    messages, tools = json.loads(document["messages"]), json.loads(document.get("tools") or "null")
    last = _trained(messages)[-1]
    own = (messages[last].get(key) for key in ("reasoning_content", "content"))
    answer = next((text.strip() for text in own if text and text.strip()), None)
    if answer is None or len(pieces) != 1:
        return None
    ((ids, mask),) = pieces
    starts = np.flatnonzero(np.diff(mask.astype(int)) == 1) + 1
    prompt = render(messages[:last], tools, add_generation_prompt=True)
    begin = int(starts[-1])
    before, behind = decode(ids[:begin].tolist()), decode(ids[begin:].tolist())
    whole = render(messages, tools)
    if not before.startswith(prompt) or not whole.startswith(prompt) or answer not in behind:
        return None
    stored = behind[: behind.index(answer)] if is_trained else before[len(prompt) :]
    expected = whole[len(prompt) : whole.index(answer, len(prompt))]
    return (stored, expected) if stored.strip() else None


def _trained(messages: list[dict[str, Any]]) -> list[int]:
    """The places of the trained answers."""
    return [
        number
        for number, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("weight", 1)
    ]
