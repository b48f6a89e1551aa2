"""Formats and sources of datasets."""

from dataclasses import dataclass
from typing import Literal

TaskName = Literal["language", "preference", "images"]
FormatName = Literal["text", "prompt-completion", "instruction", "messages", "preference", "images"]

# Documents and rows of text: the endings of their files.
_OF_TEXT = (
    *(
        f"{kind}{compression}"
        for kind in (".txt", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
        for compression in ("", ".gz", ".zst")
    ),
    ".parquet",
)


@dataclass(frozen=True)
class Format:
    """The rows of a format.

    Attributes:
        columns: the columns of a source's rows, and whether a row must have them.
        kept: the columns that a dataset keeps, those of a `Document`.
        nested: the columns whose values can be messages or tools.
        chat: whether a row can be a conversation, which needs a chat template.
        answers: number of answers that a row's document has, which share a row of tokens.
        task: the task that it is for.
        endings: those of the files that a folder of `source: files` stands for.
    """

    columns: dict[str, bool]
    kept: tuple[str, ...]
    nested: tuple[str, ...] = ()
    chat: bool = False
    answers: int = 1
    task: TaskName = "language"
    endings: tuple[str, ...] = _OF_TEXT


FORMATS: dict[FormatName, Format] = {
    "text": Format({"text": True}, kept=("text",)),
    "prompt-completion": Format(
        {"prompt": True, "completion": True}, kept=("prompt", "completion")
    ),
    "instruction": Format(
        {"instruction": True, "input": False, "output": True, "system": False, "history": False},
        kept=("messages", "tools"),
        nested=("history",),
        chat=True,
    ),
    # `prompt` and `completion` together, as lists of messages, replace `messages`.
    "messages": Format(
        {
            "messages": True,
            "prompt": False,
            "completion": False,
            "tools": False,
            "system": False,
        },
        kept=("messages", "tools"),
        nested=("messages", "prompt", "completion", "tools"),
        chat=True,
    ),
    "preference": Format(
        {"prompt": False, "chosen": True, "rejected": True, "tools": False, "system": False},
        kept=("prompt", "chosen", "rejected", "tools"),
        nested=("prompt", "chosen", "rejected", "tools"),
        chat=True,
        answers=2,
        task="preference",
    ),
    "images": Format(
        {"image": True, "label": True},
        kept=("image", "label"),
        task="images",
        endings=(".parquet",),
    ),
}


def sequence_length(format: FormatName, block_size: int) -> int:
    """Tokens of the longest sequence that a model gets, which has no neighbours in its row."""
    return block_size // FORMATS[format].answers
