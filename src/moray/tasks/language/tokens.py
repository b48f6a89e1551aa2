"""The token store of a dataset: how its splits are tokenised and written.

Each task on text has a module of this name, with functions `write_split`, `summary`, `compare` and
`warnings`.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import accumulate, chain, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from moray.console import progress
from moray.corpus.dataset import (
    Document,
    RowError,
    answers_of,
    group_of,
    num_groups,
    plain_text,
    read_documents,
    read_group,
    share_of_group,
)
from moray.proofs.comparison import Comparison
from moray.provenance.space import check_space
from moray.rows.store import Rows, RowsWriter, write_groups
from moray.tasks.language import alterations
from moray.tasks.language.alterations import Alterations, as_facts
from moray.tasks.language.encode import Encoder
from moray.tasks.language.pieces import ROLES
from moray.tasks.language.proofs.split import compare_split
from moray.tasks.language.rows import (
    PackedRows,
    Segment,
    StoredSplit,
    encode_window,
    is_trained,
    num_trained,
)

# Number of windows in progress. Python packs and writes some while the tokenizer's threads work on
# others. Each of these threads takes one document, so with long documents a single window wouldn't
# keep all of them busy.
_AT_ONCE = min(8, max(2, os.cpu_count() or 1))

_OPEN, _CLOSE = "⟦", "⟧"
# Maximum number of tokens shown of a document: a page or two.
_SHOWN_TOKENS = 1024
_SHOWN_DOCUMENTS = 3
_COMPARED, _MOST_CHARACTERS = 32, 400_000
_UNKNOWN = ("tokens", "documents")

EncodeWindow = Callable[[list[Document], int], PackedRows]
"""Makes rows of the documents of a row group and the number of the first one in its split."""


def compare(dataset: Path, model: Path, store: Path, cfg: dict[str, Any]) -> Iterator[Comparison]:
    """Compare the tokens of the first documents of the test split with the tokenizer's own."""
    split = StoredSplit(store, "test")
    documents = first_documents(dataset / "test.parquet")
    return compare_split(model, documents, split.rows, split.segments, cfg)


def first_documents(file: Path) -> list[Document]:
    """The documents of a split whose tokens are compared with the tokenizer's own.

    Those behind so many characters are left out, as tokenising all again would take too long.
    """
    first = list(islice(chain.from_iterable(read_documents(file)), _COMPARED))
    sizes = accumulate(len(plain_text(document)) for document in first)
    return [one for one, size in zip(first, sizes, strict=True) if size <= _MOST_CHARACTERS]


def write_split(file: Path, store: Path, encoder: Encoder, cfg: dict[str, Any]) -> dict[str, Any]:
    """Tokenise a split into rows.

    Args:
        file: Parquet file of the split, named after it.
        store: folder to write to. The test split's first documents are shown in `preview.txt`.
        cfg: format of the dataset, and the keys of the `data` section that tokens depend on. With
            `tokenize: on-the-fly`, rows of the train split aren't kept; the window reader of the
            task makes them.

    Returns:
        The facts of the split in the store's manifest, `weight` and `dropped_documents` among them.

    Raises:
        UserError: if documents can't be encoded.
    """
    split, train = file.stem, file.stem == "train"
    # The first worker reads validation and test from here, even if train is streamed.
    keep = not train or cfg["tokenize"] == "ahead"
    # Bytes are only needed for scoring.
    encode = partial(encode_window, encoder=encoder, packing=cfg["packing"], count_bytes=not train)
    with SplitWriter(store, split, encoder.block_size, keep) as writer:
        write_windows(writer, file, encode, encoder)
        return writer.facts()


def summary(facts: dict[str, dict[str, Any]], block_size: int) -> str:
    """The line that is printed about a store."""
    train = facts["train"]
    padding = 1 - train["tokens"] / (train["rows"] * block_size)
    dropped, cut = (
        sum(counts[f"{what}_documents"] for counts in facts.values()) for what in ("dropped", "cut")
    )
    return (
        f"{train['tokens']:,} in {train['rows']:,} rows to train on, "
        f"{train['weight'] / train['tokens']:.0%} of them trained, {padding:.1%} padding"
        + (f", {dropped:,} documents longer than a row dropped" if dropped else "")
        + (f", {cut:,} documents longer than a row cut" if cut else "")
        + remarks(facts)
    )


def remarks(facts: dict[str, dict[str, Any]]) -> str:
    """Remarks for a summary: tokens by role, alterations, and special tokens in texts."""
    return _roles(facts["train"]) + alterations.summary(facts) + _special_tokens(facts)


def warnings(facts: dict[str, dict[str, Any]], path: str) -> Iterator[str]:
    """Advice about a dataset with a key path; mostly none."""
    counts = [split["prompts"] for split in facts.values() if "prompts" in split]
    prompts, spanning = (sum(one[key] for one in counts) for key in ("prompts", "spanning"))
    if spanning:
        yield (
            f"warning: {path}: in {spanning:,} of {prompts:,} texts, the last token of the prompt "
            "also has the first characters of the completion, so generation begins with other "
            "tokens than were trained; end the prompts without white space, at the end of a word, "
            "and begin the completions with the space"
        )
    if cost := alterations.cost_of_one_rendering(facts):
        yield f"{path}: {cost}"
    unknown = [split["unknown"] for split in facts.values() if "unknown" in split]
    if unknown:
        tokens, documents = (sum(one[key] for one in unknown) for key in _UNKNOWN)
        yield (
            f"warning: {path}: {tokens:,} tokens in {documents:,} documents are of characters that "
            "the tokenizer doesn't know, which are all one token to the model; remove or replace "
            "them, or choose a base model whose tokenizer knows them"
        )


def _roles(counts: dict[str, Any]) -> str:
    """The tokens of each role, unless all are of one."""
    roles = counts.get("roles", {})
    if len(roles) < 2:
        return ""
    shares = (
        (role, f"{count['tokens']:,}", f" ({count['trained']:,} trained)" * (count["trained"] > 0))
        for role, count in roles.items()
    )
    return "; tokens by role: " + ", ".join(f"{role} {of}{some}" for role, of, some in shares)


def _special_tokens(facts: dict[str, dict[str, Any]]) -> str:
    """The special tokens that documents have in their own text, for a summary.

    They may end the answer that they are in, or begin a turn that nobody said.
    """
    totals = Counter[str]()
    for counts in facts.values():
        totals.update(counts.get("special_tokens", {}))
    listing = ", ".join(f"{token} in {count:,}" for token, count in totals.most_common())
    return f"; special tokens in the text of documents: {listing}" if totals else ""


class SplitWriter(RowsWriter):
    """Appends windows to a split and counts their contents; unless rows are kept, nothing else."""

    def __init__(self, folder: Path, split: str, block_size: int, keep_rows: bool = True) -> None:
        super().__init__(folder, split, keep_rows)
        self.folder = folder
        self.block_size = block_size
        self.keep_rows = keep_rows
        self._positions = self.open(f"{split}.segments")
        self._segments = self._tokens = self._dropped = self._cut = 0
        self._special = Counter[str]()
        self._unknown = np.zeros(2, np.int64)
        self._roles = np.zeros((len(ROLES), 2), np.int64)
        self._alterations = Alterations()

    def add_window(self, window: PackedRows) -> None:
        if self._positions:
            segments = window.segments.astype("<i8")
            segments[:, Segment.START] += self.num_rows * self.block_size
            self._positions.write(segments.data)
        self.add(window.rows, weight=num_trained(window.rows))
        self._segments += len(window.segments)
        self._tokens += int(window.segments[:, Segment.LENGTH].sum())
        self._dropped += window.dropped
        self._cut += window.cut
        self._special += window.special
        self._unknown += window.unknown
        self._roles += window.roles
        self._alterations.update(window.alterations)

    def facts(self) -> dict[str, Any]:
        roles = {
            role: {"tokens": untrained + trained, "trained": trained}
            for role, (untrained, trained) in zip(ROLES, self._roles.tolist(), strict=True)
            if untrained + trained
        }
        templates = self._alterations.copy()
        unknown = self._unknown.tolist()
        prompts = {kind: templates.pop((kind, ""), 0) for kind in ("prompts", "spanning")}
        return {
            **super().facts(),
            "segments": self._segments,
            "tokens": self._tokens,
            "dropped_documents": self._dropped,
            "cut_documents": self._cut,
            **({"roles": roles} if roles else {}),
            **({"chat_template": as_facts(templates)} if templates else {}),
            **({"prompts": prompts} if prompts["prompts"] else {}),
            **({"unknown": dict(zip(_UNKNOWN, unknown, strict=True))} if any(unknown) else {}),
            **({"special_tokens": dict(sorted(self._special.items()))} if self._special else {}),
        }


def write_windows(
    writer: SplitWriter,
    file: Path,
    encode: EncodeWindow,
    encoder: Encoder,
    names: Sequence[str] = ("document",),
) -> None:
    """Tokenise a split into a writer; of the test split, show the first documents in a preview.

    There, the pieces of a document have these names, in turn.

    Raises:
        UserError: if documents can't be encoded.
    """
    if file.stem == "test":
        documents = chain.from_iterable(read_documents(file))
        write_groups(writer.folder, file.stem, map(group_of, documents))
    windows = encode_windows(file, encode)
    followed = progress(windows, f"tokenize {file.stem}", "window", num_groups(file))
    for number, window in enumerate(followed):
        if writer.keep_rows and number == 0:
            check_space(writer.folder, round(window.rows.nbytes / share_of_group(file, 0)))
        if file.stem == "test" and number == 0:
            # It doesn't name the store: equal stores have equal manifests.
            text = preview(window, read_group(file, 0), encoder, _SHOWN_DOCUMENTS, names)
            (writer.folder / "preview.txt").write_text(f"{file.stem} split\n{text}", "utf-8")
        writer.add_window(window)


def encode_windows(file: Path, encode: EncodeWindow) -> Iterator[PackedRows]:
    """Yield all windows of a split, encoded in threads, in order, a few in memory at a time.

    Raises:
        RefusedRowError: if the chat template can't render one.
    """
    waiting: deque[Future[PackedRows]] = deque()
    first_document = 0
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for documents in read_documents(file):
            waiting.append(threads.submit(encode, documents, first_document))
            first_document += len(documents)
            if len(waiting) == _AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


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
