"""The first documents of a stored split compared with the tokenizer and chat template alone."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.corpus.dataset import Document
from moray.proofs.comparison import Comparison, transformers_version
from moray.tasks.language.proofs.answers import Piece, answers_alone, text_before_answer
from moray.tasks.language.proofs.texts import compare_texts
from moray.tasks.language.proofs.tokens import Plain, differences_of

_TRAINED, _REJECTED = 1, 4


def stored_pieces(
    rows: NDArray[np.void], segments: NDArray[np.int64], count: int
) -> list[list[Piece]]:
    """The pieces of a split's first documents; of pairs, those of their chosen halves.

    Args:
        rows: of the split, shape (rows,).
        segments: offset in the flattened rows, length and document of each piece, sorted by
            offset, shape (pieces, 3 or more).
    """
    pieces: list[list[Piece]] = [[] for _ in range(count)]
    length = rows["tokens"].shape[1]
    # If a document goes on in other rows, all of its pieces but the last one fill a row.
    for start, size, document, *_ in segments[np.argsort(-segments[:, 1], kind="stable")].tolist():
        if document >= count:
            continue
        row, column = divmod(start, length)
        part = slice(column, column + size)
        flags = rows["flags"][row, part]
        if not flags[0] & _REJECTED:
            pieces[document].append((rows["tokens"][row, part], (flags & _TRAINED).astype(bool)))
    return pieces


def compare_split(
    folder: Path,
    documents: Sequence[Document],
    rows: NDArray[np.void],
    segments: NDArray[np.int64],
    cfg: Mapping[str, Any],
) -> Iterator[Comparison]:
    """Compare the tokens of a split's first documents, and the texts that are trained.

    What a template makes of an answer is a property of the user's model, so it is reported
    and not refused. Rows and segments are those of `stored_pieces`.

    Args:
        folder: the tokenizer's.
        documents: of pairs, their chosen halves. Some may have been dropped.
        cfg: what the tokens were made by.
    """
    pieces = stored_pieces(rows, segments, len(documents))
    pairs = [(row, parts) for row, parts in zip(documents, pieces, strict=True) if parts]
    plain = Plain(
        folder, cfg["chat_template"], cfg.get("bos", "auto"), cfg.get("template_variables", {})
    )
    only_last, adds = cfg["mask_history"], cfg.get("train_template_text", False)
    if cfg.get("turns") == "each":
        length = rows["tokens"].shape[1]
        pairs = [
            one
            for row, parts in pairs
            for one in answers_alone(row, parts, plain.forms, length, only_last)
        ]
        only_last = True
    if not pairs:
        yield Comparison("tokens of documents", skipped="none of the first ones was kept")
        return
    differences = differences_of(plain, pairs, only_last)
    for what, kinds, advisory in (
        ("tokens of documents", ("tokens",), False),
        ("text that is trained", ("missing", "stop", *(() if adds else ("added",))), True),
    ):
        first = next((one for one in differences if one.kind in kinds), None)
        yield Comparison(
            what,
            first.stored if first else "equal",
            first.expected if first else "equal",
            transformers_version(),
            len(pairs),
            advisory=advisory,
        )
    texts = (
        text_before_answer(row, parts, plain.render, plain.tokenizer.decode, adds)
        for row, parts in pairs
        if "messages" in row
    )
    if named := next(filter(None, texts), None):
        yield Comparison(
            "text that the chat template puts before an answer, "
            + ("trained with it" if adds else "not trained"),
            *named,
            transformers_version(),
            len(pairs),
            advisory=True,
        )
    yield from compare_texts(folder, documents)
