"""Convert rows of a table to documents, for each format."""

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from moray.config.tasks import FORMATS, FormatName, module_of
from moray.corpus.dataset import Document, RowError
from moray.corpus.findings import Findings
from moray.corpus.values import group_key, is_nothing, spelling_of
from moray.tasks.language.conversation import (
    DefaultSystem,
    conversation,
    join_completion,
)
from moray.tasks.language.pairs import pair

# Characters that spreadsheets put between values.
_SEPARATORS = (";", "\t", "|", ",")
# Other usual names of columns, of rows that don't have these.
_ALSO = {"tokens": "words", "tags": "ner_tags"}
# Names of columns in other trainers, which a user has to choose.
_ELSEWHERE = {"label": "kto_tag"}
# Columns that must have an answer in each row.
_ANSWERS = {
    "instruction": ("output",),
    "prompt-completion": ("completion",),
    "preference": ("chosen", "rejected"),
    "reward": ("chosen", "rejected"),
}
_LIST_NAMES = "list the names of a text's labels; of zeros and ones, those that are one"
_FILL_IN = "fill it in, or remove the row"


@dataclass(frozen=True)
class Shape:
    """The structure of a table's rows.

    Attributes:
        columns: names of the table's columns, for those that differ from the format's.
        system: system prompt for conversations without one; false removes those that there are.
        findings: get what is found out about the rows.
    """

    format: FormatName
    columns: Mapping[str, str] = field(default_factory=dict)
    system: DefaultSystem = None
    findings: Findings = field(default_factory=Findings)


def document(row: Mapping[str, Any], shape: Shape) -> Document:
    """Convert a row to a document.

    Raises:
        RowError: if a column is missing, or its value doesn't match the format.
    """
    shape.findings.columns.meet(row)
    fields = _document(row, shape)
    if "group" in shape.columns:
        shape.findings.columns.read.add(shape.columns["group"])
        group = group_key(_value(row, shape.columns["group"], required=True))
        # A row without a value has no group.
        if group is not None:
            fields["group"] = group
    for text in fields.values():
        _check_characters(str(text))
    return fields


def _document(row: Mapping[str, Any], shape: Shape) -> Document:
    values, format = dict[str, Any](), FORMATS[shape.format]
    completes = _has_completion(row, shape)
    replaced_columns = _replaced_columns(row, shape, completes)
    # Columns that the config calls something else.
    taken = {column for name, column in shape.columns.items() if name != "group"}
    for name, required in format.columns.items():
        if name in replaced_columns:
            continue
        column = _column(row, name, shape)
        if not required and name not in shape.columns and column in taken:
            values[name] = None
            continue
        shape.findings.columns.read.add(column)
        value = _value(row, column, required)
        if name in format.classes:
            value = _labels(value)
        if name in format.numbers:
            values[name] = _number(value, column)
            continue
        values[name] = value
        is_text = name not in format.nested and name not in format.types
        if is_text and (required or value is not None):
            _check_text(value, column)
        if name in _ANSWERS.get(shape.format, ()):
            _check_filled(value, column)
    match shape.format:
        case "instruction":
            turns = _instruction_turns(values["instruction"], values["input"], values["output"])
            messages = [*_history_turns(values["history"]), *turns]
            fields = conversation(
                messages, None, values["system"], shape.system, shape.findings.remarks
            )
        case "messages":
            if completes:
                messages = join_completion(values["prompt"], values["completion"])
            else:
                messages = values["messages"]
            fields = conversation(
                messages, values["tools"], values["system"], shape.system, shape.findings.remarks
            )
            if not completes:
                _mention_prompt(row, fields, shape)
        case "preference":
            return pair(**values, default_system=shape.system, remarks=shape.findings.remarks)
        case "unpaired-preference":
            if not values["messages"]:
                _check_filled(values.get("completion"), _column(row, "completion", shape))
            answer = module_of(format.task, "documents").answer
            fields = answer(**values, default_system=shape.system, remarks=shape.findings.remarks)
        case "reward":
            margin = values.pop("margin")
            document = pair(**values, default_system=shape.system, remarks=shape.findings.remarks)
            return Document(**document, margin=margin)
        case "token-classification":
            return cast(Document, module_of(format.task, "documents").tagged(**values))
        case _:
            fields = values
    return cast(Document, fields)


def _mention_prompt(row: Mapping[str, Any], fields: Mapping[str, str | None], shape: Shape) -> None:
    """Add a remark if a row has a prompt that its messages don't have."""
    prompt = "" if "prompt" in shape.columns.values() else row.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        return
    if json.dumps(prompt.strip(), ensure_ascii=False)[1:-1] not in str(fields["messages"]):
        shape.findings.remarks.add(
            "prompt",
            "some rows have a prompt as text that their messages don't have, which is not used "
            "(first in {place})",
            is_warning=True,
        )


def _instruction_turns(instruction: str, context: str | None, output: str) -> list[dict[str, str]]:
    """An instruction, its optional input and the output as a conversation, as Alpaca has them."""
    question = "\n\n".join(text for text in (instruction, context) if text)
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": output},
    ]


def _history_turns(history: Any) -> list[dict[str, str]]:
    """The pairs of an instruction and its output that came before, as LLaMA-Factory has them."""
    pairs = history or []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in pairs
    ):
        raise RowError(
            "got a history that is no list of pairs, expected [instruction, output] for each turn",
            "fix the row, or name another column under columns.history",
        )
    return [
        turn
        for instruction, output in pairs
        for turn in _instruction_turns(instruction, None, output)
    ]


def _has_completion(row: Mapping[str, Any], shape: Shape) -> bool:
    """Whether a row of `messages` has them as a prompt and its completion, as TRL's do."""
    if shape.format != "messages":
        return False
    names = ("messages", "prompt", "completion")
    whole, *parts = (_column(row, name, shape) in row for name in names)
    return not whole and all(parts)


def _replaced_columns(row: Mapping[str, Any], shape: Shape, completes: bool) -> tuple[str, ...]:
    """The columns of a row that others replace."""
    if shape.format == "messages":
        return ("messages",) if completes else ("prompt", "completion")
    if shape.format == "unpaired-preference" and "messages" in shape.columns:
        return () if "completion" in shape.columns else ("completion",)
    return ()


def _column(row: Mapping[str, Any], name: str, shape: Shape) -> str:
    if name in shape.columns:
        return shape.columns[name]
    if name not in row and (also := _ALSO.get(name)) in row:
        return str(also)
    # ShareGPT's name for messages; for those of a prompt, in LLaMA-Factory's datasets of pairs.
    messages = "prompt" if "chosen" in FORMATS[shape.format].columns else "messages"
    sharegpt = name == messages and name not in row and "conversations" in row
    return "conversations" if sharegpt else name


def _value(row: Mapping[str, Any], column: str, required: bool) -> Any:
    if required and column not in row:
        raise _missing([*map(str, row)], column)
    return row.get(column)


def _missing(names: list[str], column: str) -> RowError:
    """The error for a row without a column, with what its names say about the reason."""
    if with_spaces := next((name for name in names if name.strip() == column), None):
        return RowError(
            f"got a column {with_spaces!r}, expected {column}",
            "remove the spaces around the names in the header, and around values that don't begin "
            "with one",
        )
    if mark := next((one for one in _SEPARATORS if _has(names, column, one)), None):
        return RowError(
            f"got columns {', '.join(map(repr, names))}, expected {column}",
            f"set delimiter: {json.dumps(mark)}, of source: files or url",
        )
    got = f"got columns {', '.join(names)}, expected {column}"
    if (other := _ELSEWHERE.get(column)) in names:
        return RowError(got, f"set columns: {{{column}: {other}}}")
    near = difflib.get_close_matches(column, names, n=1)
    return RowError(
        got,
        f"did you mean {near[0]}?"
        if near
        else "name it under columns, as in {output: answer}, or choose another format",
    )


def _has(names: list[str], column: str, mark: str) -> bool:
    """Whether a name is several that a mark separates, one of which is a column."""
    return any(
        column in (part.strip("\"' ") for part in name.split(mark))
        for name in names
        if mark in name
    )


def _labels(value: Any) -> str | None:
    """A label as text; a list of several as JSON, sorted; None if there is nothing."""
    if not isinstance(value, list):
        return _label(value)
    names = [_label(one) for one in value]
    if None in names:
        raise RowError("got nothing in a list of labels, expected text", _FILL_IN)
    if repeated := [name for name in names if names.count(name) > 1]:
        raise RowError(f"got {repeated[0]} more than once in a list of labels", _LIST_NAMES)
    return json.dumps(sorted(map(str, names)), ensure_ascii=False)


def _label(value: Any) -> str | None:
    """A label as text; None if there is nothing, as CSV files write it too."""
    if isinstance(value, list | dict):
        got = type(value).__name__
        raise RowError(f"got {got} as a label, expected text or a number", _LIST_NAMES)
    text = spelling_of(value)
    return None if text is None or is_nothing(text) else text


def _number(value: Any, column: str) -> float | None:
    """A number as it is or as text; None if there is nothing, as CSV files write it too."""
    text = spelling_of(value)
    if text is None or is_nothing(text):
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise RowError(
            f"got {value!r} in column {column}, expected a number of at least 0",
            "fix it, or remove the row",
        )
    return number


def _check_text(value: Any, column: str) -> None:
    if not isinstance(value, str):
        got = "nothing" if value is None else type(value).__name__
        raise RowError(
            f"got {got} in column {column}, expected text",
            "write it as text, or remove the row",
        )


def _check_filled(value: Any, column: str) -> None:
    if not value or (isinstance(value, str) and not value.strip()):
        raise RowError(f"got nothing in column {column}, expected an answer", _FILL_IN)


def _check_characters(text: str) -> None:
    """Refuse unpaired surrogates, which JSON escapes can express and UTF-8 can't."""
    # Strings know whether they are ASCII.
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError(
            f"got an unpaired surrogate (\\u{ord(text[error.start]):x}), expected Unicode text",
            "fix the row or remove it",
        ) from error
