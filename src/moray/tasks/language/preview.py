"""Documents as the model sees them, with the trained tokens marked."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from moray.rows.store import Rows
from moray.tasks.language.rows import Packed, Segment, is_trained

_OPEN, _CLOSE = "⟦", "⟧"
# Maximum number of tokens shown of a document: a page or two.
_SHOWN_TOKENS = 1024


def preview(
    window: Packed,
    tokenizer: PreTrainedTokenizerFast,
    num_documents: int,
    names: Sequence[str] = ("document",),
) -> str:
    """Decode the beginnings of a window's first documents.

    Trained tokens are enclosed in ⟦ and ⟧. For a long document, the number of tokens that aren't
    shown is given.

    Args:
        window: the packed documents.
        tokenizer: the tokenizer.
        num_documents: maximum number of documents.
        names: what the pieces of a document are called, in turn.
    """
    documents = window.segments[:, Segment.DOCUMENT]
    lines: list[str] = []
    for document in np.unique(documents)[:num_documents]:
        lines += _shown(window.rows, window.segments[documents == document], tokenizer, names)
    return "\n".join(lines) + "\n"


def _shown(
    rows: Rows,
    pieces: NDArray[np.int64],
    tokenizer: PreTrainedTokenizerFast,
    names: Sequence[str],
) -> list[str]:
    """The lines of a document."""
    block_size = rows["tokens"].shape[1]
    lines, room = [], _SHOWN_TOKENS
    left: list[NDArray[Any]] = []
    for (start, length, document, _), name in zip(pieces.tolist(), cycle(names), strict=False):
        row, column = divmod(start, block_size)
        shown = min(length, room)
        room -= shown
        if shown:
            lines.append(f"--- {name} {document}: {length:,} tokens in row {row}")
            part = slice(column, column + shown)
            lines.append(_marked(rows[row : row + 1], part, tokenizer))
        if shown < length:
            left.append(is_trained(rows[row : row + 1])[0, column + shown : column + length])
    if left:
        tokens, trained = sum(map(len, left)), sum(int(part.sum()) for part in left)
        rows_left = f"{len(left):,} row{'s' if len(left) > 1 else ''}"
        lines.append(f"... {tokens:,} more tokens in {rows_left}, {trained:,} of them trained")
    return lines


def _marked(rows: Rows, part: slice, tokenizer: PreTrainedTokenizerFast) -> str:
    tokens = rows["tokens"][0, part].tolist()
    trained = [False, *is_trained(rows)[0, part].tolist(), False]
    text, reached = "", 0
    for column in range(len(tokens) + 1):
        changed = trained[column] != trained[column + 1]
        if changed or column == len(tokens):
            # Decoded from the start: some tokens decode differently at the start of a text.
            before = tokenizer.decode(tokens[:column], skip_special_tokens=False)
            text += before[reached:]
            reached = len(before)
        if changed:
            text += _OPEN if trained[column + 1] else _CLOSE
    return text
