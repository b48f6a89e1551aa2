"""The token store of a preference dataset: how its splits are tokenised and written."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moray.corpus.dataset import Document, halves
from moray.proofs.comparison import Comparison
from moray.rows.store import Counts
from moray.stages.store import OpenStore
from moray.tasks.language.encode import Encoder
from moray.tasks.language.pieces import EncodedDocument, Piece
from moray.tasks.language.proofs.split import compare_split
from moray.tasks.language.rows import PackedRows, StoredSplit, pack_groups, with_counts
from moray.tasks.language.tokens import SplitWriter, first_documents, remarks, write_windows
from moray.tasks.language.tokens import warnings as warnings
from moray.tasks.preference.rows import REJECTED, num_pairs


class Pair(NamedTuple):
    """A prompt with the chosen answer, and the same prompt with the rejected one."""

    chosen: Piece
    rejected: Piece


def compare(dataset: Path, model: Path, store: Path, cfg: dict[str, Any]) -> Iterator[Comparison]:
    """Compare the tokens of the chosen halves of the first pairs of the test split."""
    split = StoredSplit(store, "test")
    documents = [halves(pair)[0] for pair in first_documents(dataset / "test.parquet")]
    return compare_split(model, documents, split.rows, split.segments, cfg)


def write_split(
    file: Path, store: OpenStore, encoder: Encoder, cfg: dict[str, Any]
) -> dict[str, Any]:
    """Tokenise a split into rows of pairs."""
    encode = partial(
        encode_window,
        encoder=encoder,
        drop_long=cfg["long_documents"] == "drop",
        packing=cfg["packing"],
        # Bytes are only needed for scoring.
        count_bytes=file.stem == "test",
    )
    with PairsWriter(store.folder, file.stem, encoder.block_size, journal=store.journal) as writer:
        write_windows(writer, file, store, encode, encoder, ("chosen", "rejected"))
        return writer.facts()


def summary(facts: dict[str, dict[str, Any]], block_size: int) -> str:
    """The line that is printed about a store."""
    train = facts["train"]
    padding = 1 - train["tokens"] / (train["rows"] * block_size)
    dropped, truncated = (
        sum(counts[f"{what}_documents"] for counts in facts.values()) for what in ("dropped", "cut")
    )
    return (
        f"{train['pairs']:,} pairs in {train['rows']:,} rows to train on, {padding:.1%} padding"
        + (f", {dropped:,} pairs dropped" if dropped else "")
        + (f", {truncated:,} pairs truncated" if truncated else "")
        + remarks(facts)
    )


class PairsWriter(SplitWriter):
    """Appends windows of pairs and counts their contents."""

    def counts_of(self, window: PackedRows) -> Counts:
        counts = super().counts_of(window)
        # How many rows have so many pairs.
        for number, rows in enumerate(np.bincount(num_pairs(window.rows)).tolist()):
            counts["rows with pairs", str(number)] = rows
        return counts

    def facts(self) -> dict[str, Any]:
        rows = {
            int(kind[1]): number
            for kind, number in self.counts.items()
            if kind[0] == "rows with pairs" and number
        }
        return {
            **super().facts(),
            "pairs": sum(pairs * number for pairs, number in rows.items()),
            "most_pairs_in_row": max(rows, default=0),
        }


def encode_window(
    documents: list[Document],
    first_document: int,
    encoder: Encoder,
    drop_long: bool,
    packing: bool,
    count_bytes: bool,
) -> PackedRows:
    """Tokenise and pack a window: the pairs of one row group of the dataset.

    Raises:
        RefusedRowError: if the chat template can't render one.
    """
    pairs, dropped, truncated = encode_pairs(
        documents, first_document, encoder, drop_long, count_bytes
    )
    packed = pack_pairs(pairs, encoder.block_size, encoder.dtype, packing)
    pieces = [*chain.from_iterable(pairs)]
    packed = with_counts(packed, pieces, documents, first_document, encoder)
    return replace(packed, dropped=dropped, cut=truncated)


def encode_pairs(
    documents: list[Document],
    first_document: int,
    encoder: Encoder,
    drop_long: bool,
    count_bytes: bool,
) -> tuple[list[Pair], int, int]:
    """Tokenise pairs.

    If a half is longer than half a row, the pair is dropped, or it is truncated: both prompts lose
    the same number of tokens at their beginning, as many as the longer half needs, but keep a
    quarter of a row; then answers that are still too long lose their end.

    Args:
        documents: rows of a dataset, all text or all conversations.
        first_document: number of the first one in its split.

    Returns:
        The pairs, in the order of their documents; the number of documents without one (too long,
        or with the same tokens in both answers, which can also come from truncation); and the
        number of pairs that were cut.

    Raises:
        RefusedRowError: if the chat template can't render one.
    """
    longest = encoder.block_size // 2
    # Documents of one kind at a time, as the encoder expects them.
    encoded = [
        encoder.encode_documents(list(half), first_document, count_bytes)
        for half in zip(*map(halves, documents), strict=True)
    ]
    pairs: list[Pair] = []
    dropped = truncated = 0
    for chosen, rejected in zip(*encoded, strict=True):
        too_long = max(len(chosen.tokens), len(rejected.tokens)) > longest
        if not (too_long and drop_long):
            pair = _cut(chosen, rejected, longest)
            if _prefers(pair):
                pairs.append(pair)
                truncated += too_long
                continue
        dropped += 1
    return pairs, dropped, truncated


def _cut(chosen: EncodedDocument, rejected: EncodedDocument, longest: int) -> Pair:
    excess = max(0, max(len(chosen.tokens), len(rejected.tokens)) - longest)
    prompt = min(int(half.mask.argmax()) for half in (chosen, rejected))
    start = min(excess, max(0, prompt - longest // 2))
    part = slice(start, start + longest)
    return Pair(chosen.piece(part), rejected.piece(part))


def _prefers(pair: Pair) -> bool:
    """Whether both answers have trained tokens, and they differ."""
    if np.array_equal(pair.chosen.tokens, pair.rejected.tokens):
        return False
    return bool(pair.chosen.mask.any() and pair.rejected.mask.any())


def pack_pairs(
    pairs: list[Pair], block_size: int, token_type: np.dtype[Any], packing: bool
) -> PackedRows:
    """Put pairs into rows, the chosen piece first: packed by best fit, or a row for each pair.

    Args:
        pairs: their pieces have at most half of `block_size` tokens.
        block_size: tokens in a row, an even number.
    """
    starts = () if packing else (0, block_size // 2)
    filled = pack_groups(pairs, block_size, token_type, packing, starts)
    for start, length, *_ in filled.segments[1::2].tolist():
        row, column = divmod(start, block_size)
        filled.rows["flags"][row, column : column + length] |= REJECTED
    return filled
