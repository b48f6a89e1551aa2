"""Convert rows of a table to documents, for each format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from moray.config.formats import FORMATS, FormatName
from moray.corpus.conversation import completed, conversation
from moray.corpus.document import Document, RowError
from moray.corpus.pairs import pair


@dataclass(frozen=True)
class Shape:
    """The structure of a table's rows.

    Attributes:
        format: name of their format.
        columns: names of the table's columns, for those that differ from the format's.
        system: system prompt for conversations without one.
    """

    format: FormatName
    columns: Mapping[str, str] = field(default_factory=dict)
    system: str | None = None


def document(row: Mapping[str, Any], shape: Shape) -> Document:
    """Convert a row to a document.

    Raises:
        RowError: if a column is missing, or its value doesn't match the format.
    """
    made = _document(row, shape)
    for text in made.values():
        _check_characters(str(text))
    return made


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the nulls inside the values of an Arrow row.

    Arrow gives each mapping of a column the keys of all the others. A tool call, for example,
    would have the arguments of all other tools.
    """
    return {name: _without_nulls(value) for name, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(kept) for key, kept in value.items() if kept is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value


def _document(row: Mapping[str, Any], shape: Shape) -> Document:
    values, format = {}, FORMATS[shape.format]
    completes = _has_completion(row, shape)
    for name, required in format.columns.items():
        column = _column(row, name, shape)
        required = required and not (completes and name == "messages")
        value = values[name] = _value(row, column, required)
        if name not in format.nested and (required or value is not None):
            _check_text(value, column)
    match shape.format:
        case "instruction":
            messages = _instructed(values["instruction"], values["input"], values["output"])
            made = conversation(messages, None, values["system"], shape.system)
        case "messages":
            messages = values["messages"]
            if completes:
                messages = completed(values["prompt"], values["completion"])
            made = conversation(messages, values["tools"], values["system"], shape.system)
        case "preference":
            return pair(**values, default_system=shape.system)
        case _:
            made = values
    return cast(Document, made)


def _instructed(instruction: str, context: str | None, output: str) -> list[dict[str, str]]:
    """An instruction, its optional input and the output as a conversation, as Alpaca has them."""
    question = "\n\n".join(text for text in (instruction, context) if text)
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": output},
    ]


def _has_completion(row: Mapping[str, Any], shape: Shape) -> bool:
    """Whether a row of `messages` has them as a prompt and its completion, as TRL's do."""
    names = ("messages", "prompt", "completion")
    whole, *parts = (_column(row, name, shape) in row for name in names)
    return shape.format == "messages" and not whole and all(parts)


def _column(row: Mapping[str, Any], name: str, shape: Shape) -> str:
    if name in shape.columns:
        return shape.columns[name]
    # ShareGPT's name for messages; for those of a prompt, in LLaMA-Factory's datasets of pairs.
    messages = "prompt" if shape.format == "preference" else "messages"
    sharegpt = name == messages and name not in row and "conversations" in row
    return "conversations" if sharegpt else name


def _value(row: Mapping[str, Any], column: str, required: bool) -> Any:
    if required and column not in row:
        raise RowError(
            f"got columns {', '.join(map(str, row))}, expected {column}",
            "map the column under columns, or choose another format",
        )
    return row.get(column)


def _check_text(value: Any, column: str) -> None:
    if not isinstance(value, str):
        got = "nothing" if value is None else type(value).__name__
        raise RowError(
            f"got {got} in column {column}, expected text",
            "fill in the value or remove the row",
        )


def _check_characters(text: str) -> None:
    """Refuse unpaired surrogates, which JSON escapes can express and UTF-8 can't."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError(
            f"got an unpaired surrogate (\\u{ord(text[error.start]):x}), expected Unicode text",
            "fix the row or remove it",
        ) from error
