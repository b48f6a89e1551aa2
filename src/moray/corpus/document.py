"""Documents: the rows of a dataset, in one of the formats."""

import json
from typing import Any, TypedDict


class Document(TypedDict, total=False):
    """A row: `text`; `prompt` and `completion`; `messages` with `tools`; a pair; or an image.

    A pair is `prompt`, `chosen` and `rejected` as text. If it has no `prompt`, both answers are
    whole conversations like `messages`, in which only the answers are trained on.

    Messages and tools are JSON strings in OpenAI's format: a column of nested values would need
    one type for all rows, but the arguments of tools have many. An image is the content of a file
    of any type that Pillow reads, and its label is a number. Rows with the same `group` are put
    into the same split. `place` is where a row comes from, for errors.
    """

    text: str
    prompt: str
    completion: str
    messages: str
    chosen: str
    rejected: str
    tools: str | None
    image: bytes
    label: int
    group: str
    place: str


def content(document: Document) -> str:
    """The content by which duplicates are recognised."""
    if "image" in document:
        # Each byte becomes the character of the same number.
        return document["image"].decode("latin-1")
    if "text" in document:
        return document["text"]
    if "chosen" in document:
        parts = (document.get("prompt"), document["chosen"], document["rejected"])
        return "\0".join(part or "" for part in (*parts, document["tools"]))
    if "prompt" in document:
        return f"{document['prompt']}\0{document['completion']}"
    return f"{document['messages']}\0{document['tools'] or ''}"


def plain_text(document: Document) -> str:
    """All text of a document as one string; for a conversation, the content of its messages."""
    if "chosen" in document:
        return "\n".join(map(plain_text, halves(document)))
    if "messages" in document:
        return "\n".join(message["content"] or "" for message in messages_of(document))
    return document.get("text") or document.get("prompt", "") + document.get("completion", "")


def messages_of(document: Document) -> list[dict[str, Any]]:
    """The messages of a conversation, parsed."""
    messages: list[dict[str, Any]] = json.loads(document["messages"])
    return messages


def halves(document: Document) -> tuple[Document, Document]:
    """The chosen and the rejected half of a pair, each as a document of a language model."""
    prompt, answers = document.get("prompt"), (document["chosen"], document["rejected"])
    if prompt is None:
        tools = document["tools"]
        chosen, rejected = (Document(messages=answer, tools=tools) for answer in answers)
    else:
        chosen, rejected = (Document(prompt=prompt, completion=answer) for answer in answers)
    return chosen, rejected


def tools_of(document: Document) -> list[dict[str, Any]] | None:
    """The tools of a conversation, parsed; None if it has none."""
    tools = document.get("tools")
    return json.loads(tools) if tools else None


class RowError(Exception):
    """A row that isn't a valid document. The caller knows its location and adds it.

    Args:
        problem: what is wrong.
        remedy: what the user can do about it.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy
