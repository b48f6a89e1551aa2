"""What a source gives: documents, as rows of one of the formats."""

from typing import TypedDict


class Document(TypedDict, total=False):
    """A row: `text`, or `prompt` and `completion`; `group` keeps rows in one split."""

    text: str
    prompt: str
    completion: str
    group: str


COLUMNS = {"text": ("text",), "prompt-completion": ("prompt", "completion")}
