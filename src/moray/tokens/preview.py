"""Documents as the model sees them, with what is trained marked."""

import numpy as np
from transformers import PreTrainedTokenizerFast

from moray.tokens.rows import Packed, Rows, Segment, is_trained

_OPEN, _CLOSE = "⟦", "⟧"


def preview(window: Packed, tokenizer: PreTrainedTokenizerFast, num_documents: int) -> str:
    """The first documents of a window, decoded; ⟦ and ⟧ stand around trained tokens."""
    block_size = window.rows["tokens"].shape[1]
    segments = window.segments
    lines = []
    for document in np.unique(segments[:, Segment.DOCUMENT])[:num_documents]:
        for start, length, _, _ in segments[segments[:, Segment.DOCUMENT] == document]:
            row, column = divmod(int(start), block_size)
            part = slice(column, column + int(length))
            lines.append(f"--- document {document}: {length} tokens in row {row}")
            lines.append(_marked(window.rows[row : row + 1], part, tokenizer))
    return "\n".join(lines) + "\n"


def _marked(rows: Rows, part: slice, tokenizer: PreTrainedTokenizerFast) -> str:
    tokens = rows["tokens"][0, part].tolist()
    trained = [False, *is_trained(rows)[0, part].tolist(), False]
    text, reached = "", 0
    for column in range(len(tokens) + 1):
        changed = trained[column] != trained[column + 1]
        if changed or column == len(tokens):
            # Decoded from the start: tokenizers write some tokens otherwise at the front.
            before = tokenizer.decode(tokens[:column], skip_special_tokens=False)
            text += before[reached:]
            reached = len(before)
        if changed:
            text += _OPEN if trained[column + 1] else _CLOSE
    return text
