"""The answers of a conversation that are trained."""

import json

from moray.corpus.dataset import Document, messages_of
from moray.tasks.language.turns import Messages


def trained_answers(messages: Messages) -> list[int]:
    """The places of the assistant's messages that are trained."""
    return [
        number
        for number, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("weight", 1)
    ]


def answer_alone(document: Document, number: int) -> Document:
    """A conversation up to one of its messages, which alone is trained."""
    messages = messages_of(document)[: number + 1]
    for message in messages[:-1]:
        if message["role"] == "assistant":
            message["weight"] = 0
    return {**document, "messages": json.dumps(messages, ensure_ascii=False)}
