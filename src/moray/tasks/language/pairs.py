"""Pairs of answers of which one is better, as documents."""

import json
from collections.abc import Mapping
from typing import Any

from moray.corpus.dataset import Document, RowError
from moray.corpus.remarks import Remarks
from moray.tasks.language.conversation import (
    DefaultSystem,
    asks,
    check_no_system,
    conversation,
    divide,
)

_ANSWERS = ("chosen", "rejected")
_LINE_ENDS = "\n\r\t"


def pair(
    prompt: Any,
    chosen: Any,
    rejected: Any,
    tools: Any,
    system: str | None,
    default_system: DefaultSystem,
    remarks: Remarks,
) -> Document:
    """Make the document of a pair; see `Document`.

    Args:
        prompt: text; or a list of messages; or None if both answers are whole texts or whole
            conversations, whose common beginning is the prompt, or a question in them as text.
        chosen: the better answer: text, a list of messages, or one message.
        rejected: the worse answer, of the same kind.
        tools: functions that a conversation can call; see `conversation`.
        default_system: as in `conversation`, and so are the remarks.

    Raises:
        RowError: if both are equal, a part is of another kind than the others, or a conversation
            doesn't end with the assistant's answer.
    """
    answers = dict(zip(_ANSWERS, (chosen, rejected), strict=True))
    if isinstance(prompt, str) and all(asks(answer, prompt) for answer in answers.values()):
        prompt = None
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
        return _conversations(prompt, answers, tools, (system, default_system), remarks)
    if prompt is None:
        end = _end_of_prompt(chosen, rejected)
        prompt, chosen, rejected = chosen[:end], chosen[end:], rejected[end:]
        remarks.add(
            "prompt",
            "some pairs have no prompt; it is what both texts begin with (first in {place})",
        )
    check_no_system(system, default_system, "prompt, chosen and rejected")
    return Document(prompt=prompt, chosen=chosen, rejected=rejected, tools=None)


def _end_of_prompt(chosen: str, rejected: str) -> int:
    """The number of characters in the words that two whole texts begin with.

    A space before the first other word is a part of the answers, as tokenizers have it.

    Raises:
        RowError: if they begin differently, or one of them is the beginning of the other.
    """
    pairs = enumerate(zip(chosen, rejected, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), len(rejected))
    for end in range(min(same, len(chosen)), 0, -1):
        begins_word = chosen[end : end + 1] == rejected[end : end + 1] == " "
        if (begins_word or chosen[end - 1] in _LINE_ENDS) and all(
            part.strip() for part in (chosen[:end], chosen[end:], rejected[end:])
        ):
            return end
    raise RowError(
        "got no prompt, expected one for texts that don't begin with the same words",
        'name its column under columns, as in {prompt: question}, or write "prompt": "" if there '
        "is none",
    )


def _conversations(
    prompt: Any,
    answers: Mapping[str, Any],
    tools: Any,
    systems: tuple[str | None, DefaultSystem],
    remarks: Remarks,
) -> Document:
    by_answer = {
        name: conversation(_whole(prompt, answer, name), tools, *systems, remarks)
        for name, answer in answers.items()
    }
    messages = {name: json.loads(str(by_answer[name]["messages"])) for name in _ANSWERS}
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
    return Document(chosen=chosen, rejected=rejected, tools=by_answer["chosen"]["tools"])


def _whole(prompt: Any, answer: Any, name: str) -> list[Any]:
    reply = [answer] if isinstance(answer, Mapping) else answer
    before = [] if prompt is None else prompt
    if not (isinstance(reply, list) and isinstance(before, list)):
        kinds = f"{type(before).__name__} and {type(reply).__name__}"
        raise RowError(
            f"got {kinds} for prompt and {name}, expected text or lists of messages", "fix the row"
        )
    prompt_part, answer_part = divide(before, reply, name)
    return [*prompt_part, *answer_part]


def _shared(chosen: list[Any], rejected: list[Any]) -> int:
    """Number of messages at the beginning that two conversations share."""
    same = [one == other for one, other in zip(chosen, rejected, strict=False)]
    return (*same, False).index(False)


def _equal() -> RowError:
    return RowError("chosen and rejected are equal, so neither is preferred", "remove the row")
