"""Convert pairs of a chosen and a rejected answer, as text or as conversations."""

import json
from collections.abc import Mapping
from typing import Any

from moray.corpus.conversation import conversation
from moray.corpus.document import Document, RowError

_ANSWERS = ("chosen", "rejected")


def pair(
    prompt: Any,
    chosen: Any,
    rejected: Any,
    tools: Any,
    system: str | None,
    default_system: str | None,
) -> Document:
    """Make the document of a pair; see `Document`.

    Args:
        prompt: text; or a list of messages; or None if both answers are whole conversations, whose
            common beginning is the prompt.
        chosen: the better answer: text, a list of messages, or one message.
        rejected: the worse answer, of the same kind.
        tools: functions that a conversation can call; see `conversation`.
        system: the row's own system prompt.
        default_system: system prompt to use if neither the row nor the messages have one.

    Raises:
        RowError: if an answer is missing, both are equal, a part is of another kind than the
            others, or a conversation doesn't end with the assistant's answer.
    """
    answers = dict(zip(_ANSWERS, (chosen, rejected), strict=True))
    for name, answer in answers.items():
        if not answer:
            raise RowError(
                f"got nothing for {name}, expected an answer", "fill it in or remove the row"
            )
    are_text = [isinstance(part, str) for part in (prompt, *answers.values()) if part is not None]
    if len(set(are_text)) > 1:
        raise RowError(
            "got text and messages in one pair, expected prompt, chosen and rejected all as text "
            "or all as messages",
            "convert one of them; whole conversations in chosen and rejected need no prompt",
        )
    if chosen == rejected:
        raise _equal()
    if not are_text[0]:
        return _conversations(prompt, answers, tools, (system, default_system))
    if prompt is None:
        raise RowError(
            "got no prompt, expected one for answers that are text",
            "map the column under columns, or fill it in",
        )
    if system or default_system:
        raise RowError(
            "got a system prompt, which answers that are text can't have",
            "remove it, or write prompt, chosen and rejected as messages",
        )
    return Document(prompt=prompt, chosen=chosen, rejected=rejected, tools=None)


def _conversations(
    prompt: Any, answers: Mapping[str, Any], tools: Any, systems: tuple[str | None, str | None]
) -> Document:
    made = {
        name: conversation(_whole(prompt, answer, name), tools, *systems)
        for name, answer in answers.items()
    }
    messages = {name: json.loads(str(made[name]["messages"])) for name in _ANSWERS}
    if messages["chosen"] == messages["rejected"]:
        raise _equal()
    shared = _shared(*messages.values())
    if shared == 0:
        raise RowError(
            "chosen and rejected begin differently, expected the same prompt in both",
            "fix the row or remove it",
        )
    for name, spoken in messages.items():
        if len(spoken) == shared or spoken[-1]["role"] != "assistant":
            raise RowError(
                f"the conversation of {name} doesn't end with an answer of the assistant",
                "add the answer or remove the row",
            )
        if spoken[-1].get("weight", 1) == 0:
            raise RowError(
                f"the answer of {name} has weight 0", "remove the weight or remove the row"
            )
        for message in spoken[:shared]:
            if message["role"] == "assistant":
                message["weight"] = 0
    chosen, rejected = (json.dumps(messages[name], ensure_ascii=False) for name in _ANSWERS)
    return Document(chosen=chosen, rejected=rejected, tools=made["chosen"]["tools"])


def _whole(prompt: Any, answer: Any, name: str) -> list[Any]:
    """Prompt and answer as one list of messages."""
    said = [answer] if isinstance(answer, Mapping) else answer
    before = [] if prompt is None else prompt
    if not (isinstance(said, list) and isinstance(before, list)):
        kinds = f"{type(before).__name__} and {type(said).__name__}"
        raise RowError(
            f"got {kinds} for prompt and {name}, expected text or lists of messages", "fix the row"
        )
    # Some datasets repeat the prompt in the answers.
    return said if said[: len(before)] == before else [*before, *said]


def _shared(chosen: list[Any], rejected: list[Any]) -> int:
    """Number of messages at the beginning that two conversations share."""
    same = [one == other for one, other in zip(chosen, rejected, strict=False)]
    return (*same, False).index(False)


def _equal() -> RowError:
    return RowError("chosen and rejected are equal, so neither is preferred", "remove the row")
