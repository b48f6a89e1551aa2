"""What of a split a person looks at: its first documents as text, with what is trained marked."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from moray.corpus.dataset import Document, RowError, answers_of
from moray.rows.store import Rows
from moray.tasks.language import alterations
from moray.tasks.language.alterations import Alterations
from moray.tasks.language.encode import Encoder
from moray.tasks.language.rows import PackedRows, Segment, is_trained

_OPEN, _CLOSE = "⟦", "⟧"
# Maximum number of tokens shown of a document: a page or two.
_SHOWN_TOKENS = 1024


def preview(
    window: PackedRows,
    documents: Sequence[Document],
    encoder: Encoder,
    num_documents: int,
    names: Sequence[str] = ("document",),
) -> str:
    """Decode the beginnings of the first window's first documents, whose pieces have names.

    Trained tokens are enclosed in ⟦ and ⟧. For a long document, the number of tokens that aren't
    shown is given; for a conversation, of those that the chat template leaves out.
    """
    numbers = window.segments[:, Segment.DOCUMENT]
    lines: list[str] = []
    for number in np.unique(numbers)[:num_documents].tolist():
        pieces = window.segments[numbers == number]
        lines += _preview_lines(window.rows, pieces, encoder.tokenizer, names)
        lines += _remarks(documents[number], number, encoder, names)
    return "\n".join(lines) + "\n"


def _remarks(
    document: Document, number: int, encoder: Encoder, names: Sequence[str]
) -> Iterator[str]:
    """Lines about what the chat template does to a conversation, or to each answer of a row."""
    for talk, name in zip(answers_of(document), names, strict=False):
        if "messages" not in talk:
            continue
        if parts := encoder.template().left_out(talk):
            count = sum(len(encoder.tokens_of(part)) for part in parts)
            yield (
                f"... the chat template leaves out {count:,} tokens of the messages of {name} "
                f"{number}, beginning with {parts[0].strip()[:40]!r}"
            )
        rows = list(encoder.encode_documents([talk], 0, count_bytes=False))
        counts = Alterations()
        for row in rows:
            counts.update(row.alterations)
        del counts["left_out", ""]  # said above
        yield from (f"... {line}, in {name} {number}" for line in alterations.lines(counts))
        if end := _end_of_other_prompt(talk, rows[-1].tokens.tolist(), encoder):
            yield (
                f"... in generation, the prompt of {name} {number} has other tokens than here: the "
                f"answer's first one begins within {end!r}, so end the prompt before that"
            )


def _end_of_other_prompt(talk: Document, tokens: list[int], encoder: Encoder) -> str | None:
    """The end of the last answer's prompt, if a token of its text goes on into the answer."""
    try:
        prompt, _ = encoder.template().prompt(talk)
    except RowError:
        # Many templates fail on the empty prompt of an assistant who has the first turn.
        return None
    alone = encoder.tokens_of(prompt)
    same = encoder.template().renderings(talk)[-1].text.startswith(prompt)
    if not same or tokens[: len(alone)] == alone:
        return None
    return prompt[-10:]


def _preview_lines(
    rows: Rows,
    pieces: NDArray[np.int64],
    tokenizer: PreTrainedTokenizerFast,
    names: Sequence[str],
) -> list[str]:
    block_size = rows["tokens"].shape[1]
    lines, room = [], _SHOWN_TOKENS
    rest: list[NDArray[Any]] = []
    for (start, length, document, _), name in zip(pieces.tolist(), cycle(names), strict=False):
        row, column = divmod(start, block_size)
        num_shown = min(length, room)
        room -= num_shown
        if num_shown:
            lines.append(f"--- {name} {document}: {length:,} tokens in row {row}")
            part = slice(column, column + num_shown)
            lines.append(_mark_trained(rows[row : row + 1], part, tokenizer))
        if num_shown < length:
            rest.append(is_trained(rows[row : row + 1])[0, column + num_shown : column + length])
    if rest:
        tokens, trained = sum(map(len, rest)), sum(int(part.sum()) for part in rest)
        rows_left = f"{len(rest):,} row{'s' if len(rest) > 1 else ''}"
        lines.append(f"... {tokens:,} more tokens in {rows_left}, {trained:,} of them trained")
    return lines


def _mark_trained(rows: Rows, part: slice, tokenizer: PreTrainedTokenizerFast) -> str:
    tokens = rows["tokens"][0, part].tolist()
    trained = [False, *is_trained(rows)[0, part].tolist(), False]
    text, position = "", 0
    for column in range(len(tokens) + 1):
        is_border = trained[column] != trained[column + 1]
        if is_border or column == len(tokens):
            # Decoded from the start: some tokens decode differently at the start of a text.
            before = tokenizer.decode(tokens[:column], skip_special_tokens=False)
            text += before[position:]
            position = len(before)
        if is_border:
            text += _OPEN if trained[column + 1] else _CLOSE
    return text
