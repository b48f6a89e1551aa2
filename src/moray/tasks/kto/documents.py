"""Rows with one answer, good or bad, as documents; and their answers with other prompts."""

import json
from collections.abc import Mapping
from typing import Any

from moray.corpus.dataset import Document, RowError
from moray.corpus.remarks import Remarks
from moray.corpus.values import spelling_of
from moray.tasks.language.conversation import (
    DefaultSystem,
    asks,
    check_no_system,
    conversation,
    join_completion,
    parse,
)

_LABELS = {"true": True, "1": True, "false": False, "0": False}
_FILL_IN = "fill it in, or remove the row"


def answer(
    messages: Any,
    label: Any,
    tools: Any,
    system: str | None,
    default_system: DefaultSystem,
    remarks: Remarks,
    prompt: Any = None,
    completion: Any = None,
) -> Document:
    """Make the document of an answer that is good or bad; see `Document`.

    Args:
        messages: a conversation whose last message is the answer; None if `completion` has it. If
            there is a prompt too, the messages go on with it, or repeat it.
        label: whether it is good: true or false, 1 or 0, or either as a word.
        tools: functions that a conversation can call; see `conversation`.
        default_system: as in `conversation`, and so are the remarks.
        prompt: text, or a list of messages.
        completion: the answer: text, a list of messages, or one message.

    Raises:
        RowError: if the answer or its label is missing, parts are of two kinds, or the answer or
            the prompt is there twice.
    """
    good = _label(label)
    systems = system, default_system
    if completion is None and messages is not None:
        whole = _with_prompt(prompt, messages)
        return _talk(whole, tools, systems, remarks, good, has_history=True)
    if completion and messages:
        raise RowError(
            "got messages and a completion in one row, expected one of them",
            "remove a column, or name what to read under columns, as in {prompt: messages} or "
            "{messages: conversation}",
        )
    if not completion or (isinstance(completion, str) and not completion.strip()):
        raise RowError("got an empty completion, expected text", _FILL_IN)
    if prompt is None:
        raise RowError(
            "got no prompt, expected one for each completion",
            "name its column under columns, as in {prompt: question}, or {messages: completion} if "
            'conversations have both; if there is none, write "prompt": ""',
        )
    if isinstance(prompt, str) != isinstance(completion, str):
        raise RowError(
            "got text and messages in one row, expected prompt and completion both as text or both "
            "as messages",
            "convert one of them",
        )
    if not isinstance(prompt, str):
        reply = [completion] if isinstance(completion, Mapping) else completion
        whole = join_completion(prompt, reply)
        return _talk(whole, tools, systems, remarks, good, has_history=False)
    check_no_system(system, default_system, "prompt and completion")
    return Document(prompt=prompt, completion=completion, tools=None, label=good)


def _with_prompt(prompt: Any, messages: Any) -> Any:
    """The messages of a row, after those of its prompt that they don't repeat."""
    if not isinstance(prompt, str):
        return join_completion(prompt, messages) if prompt else messages
    if prompt.strip() and not asks(parse(messages, "messages"), prompt):
        raise RowError(
            "got a prompt as text that the messages don't have before their answer",
            'write it as messages, as in [{"role": "user", "content": "…"}], or remove it',
        )
    return messages


def _label(value: Any) -> bool:
    word = (spelling_of(value) or "").strip().lower()
    if word not in _LABELS:
        got = "nothing" if value is None else repr(value)
        raise RowError(
            f"got {got} for the label, expected true or false",
            "write true for a good answer and false for a bad one, or 1 and 0",
        )
    return _LABELS[word]


def _talk(
    messages: Any,
    tools: Any,
    systems: tuple[str | None, DefaultSystem],
    remarks: Remarks,
    label: bool,
    has_history: bool,
) -> Document:
    """The document of a conversation, which ends with its answer; messages before aren't trained.

    Args:
        has_history: whether the answer is the last message alone.
    """
    fields = conversation(messages, tools, *systems, remarks)
    spoken = json.loads(str(fields["messages"]))
    if spoken[-1]["role"] != "assistant" or spoken[-1].get("weight", 1) == 0:
        raise RowError(
            "the conversation doesn't end with an answer of the assistant to train on",
            "add the answer or remove the row",
        )
    if has_history:
        for message in spoken[:-1]:
            if message["role"] == "assistant":
                message["weight"] = 0
    whole = json.dumps(spoken, ensure_ascii=False)
    return Document(completion=whole, tools=fields["tools"], label=label)


def prompt_of(document: Document) -> str:
    """The prompt as text, or as JSON of its messages."""
    if document.get("prompt") is None:
        return _as_json(_divided(document)[0])
    return document["prompt"]


def reply_of(document: Document) -> str:
    """The answer likewise."""
    if document.get("prompt") is None:
        return _as_json(_divided(document)[1])
    return document["completion"]


def with_answer_of(document: Document, other: Document) -> Document:
    """The prompt of a document with the answer of another, as a document of a language model."""
    if document.get("prompt") is None:
        whole = [*_divided(document)[0], *_divided(other)[1]]
        return Document(messages=_as_json(whole), tools=document["tools"])
    return Document(prompt=document["prompt"], completion=other["completion"])


def _divided(document: Document) -> tuple[list[Any], list[Any]]:
    """The messages of the prompt and those of the answer, which begins with the first trained."""
    messages = json.loads(document["completion"])
    trained = (
        message["role"] == "assistant" and message.get("weight", 1) != 0 for message in messages
    )
    start = [*trained].index(True)
    return messages[:start], messages[start:]


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
