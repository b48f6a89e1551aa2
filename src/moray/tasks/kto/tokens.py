"""The token store of answers that are good or bad: how its splits are tokenised and written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moray.corpus.dataset import Document, answers_of
from moray.errors import UserError
from moray.proofs.comparison import Comparison
from moray.rows.store import Counts
from moray.stages.store import OpenStore
from moray.tasks.kto.documents import prompt_of, reply_of, with_answer_of
from moray.tasks.kto.rows import Answer, num_desirable, pack_answers
from moray.tasks.language import tokens as language
from moray.tasks.language.encode import Encoder
from moray.tasks.language.pieces import EncodedDocument, Piece
from moray.tasks.language.proofs.split import compare_split
from moray.tasks.language.rows import PackedRows, StoredSplit, with_counts
from moray.tasks.preference.tokens import PairsWriter

# How far the answer to another prompt is looked for.
_NEIGHBOURS = 100
# Of the losses of good answers to those of bad ones: what the authors advise, and what is far off.
_MOST = 4 / 3
_FAR = 2.0


def compare(dataset: Path, model: Path, store: Path, cfg: dict[str, Any]) -> Iterator[Comparison]:
    """Compare the tokens of the first answers of the test split, each with its own prompt."""
    split = StoredSplit(store, "test")
    documents = [
        answers_of(document)[0] for document in language.first_documents(dataset / "test.parquet")
    ]
    return compare_split(model, documents, split.rows, split.segments, cfg)


@dataclass(frozen=True)
class PackedAnswers(PackedRows):
    """Answers packed into rows, and the number of those that are left out, as none differs."""

    without_other: int = 0


def write_split(
    file: Path, store: OpenStore, encoder: Encoder, cfg: dict[str, Any]
) -> dict[str, Any]:
    """Tokenise a split into rows of answers.

    Raises:
        UserError: if there is none, because no document has another beside it.
    """
    encode = partial(
        encode_window,
        encoder=encoder,
        drop_long=cfg["long_documents"] == "drop",
        packing=cfg["packing"],
        # Bytes are only needed for scoring.
        count_bytes=file.stem == "test",
    )
    with AnswersWriter(
        store.folder, file.stem, encoder.block_size, journal=store.journal
    ) as writer:
        language.write_windows(
            writer, file, store, encode, encoder, ("answer", "another's answer to")
        )
        facts = writer.facts()
    if file.stem != "validation" and not facts["pairs"] and facts["without_other"]:
        raise UserError(
            f"datasets.{file.parent.name}",
            f"no answer of the {file.stem} split has another beside it that differs, by which the "
            "KL divergence is estimated",
            "add rows, or choose a larger share for the split",
        )
    return facts


def summary(facts: dict[str, dict[str, Any]], block_size: int) -> str:
    """The line that is printed about a store."""
    train = facts["train"]
    padding = 1 - train["tokens"] / (train["rows"] * block_size)
    dropped, cut = (
        sum(counts[f"{what}_documents"] for counts in facts.values()) for what in ("dropped", "cut")
    )
    good = train["desirable"]
    return (
        f"{train['pairs']:,} answers in {train['rows']:,} rows to train on, {good:,} good and "
        f"{train['pairs'] - good:,} bad, {padding:.1%} padding"
        + (f", {dropped:,} answers dropped" if dropped else "")
        + (f", {cut:,} answers truncated" if cut else "")
        + language.remarks(facts)
    )


def warnings(facts: dict[str, dict[str, Any]], path: str) -> Iterator[str]:
    """Advice about a dataset with a key path; mostly none."""
    yield from language.warnings(facts, path)
    if alone := sum(counts["without_other"] for counts in facts.values()):
        yield (
            f"warning: {path}: {alone:,} answers are left out, because the KL divergence needs "
            f"another document's answer that differs, and none of the {_NEIGHBOURS} before has one"
        )
    good = facts["train"]["desirable"]
    bad = facts["train"]["pairs"] - good
    if good and bad and not 1 / _FAR <= good / bad <= _MOST * _FAR:
        low, high = bad / good, _MOST * bad / good
        others = f"undesirable_weight from {1 / high:.3g} to {1 / low:.3g}"
        yield (
            f"{path}: {good:,} good and {bad:,} bad answers: the authors of KTO advise weights by "
            "which good ones count 1 to 4/3 times as much as bad ones in total, so "
            f"kto.desirable_weight from {low:.3g} to {high:.3g}, or {others}"
        )


class AnswersWriter(PairsWriter):
    """Appends windows of answers and counts their contents."""

    def counts_of(self, window: PackedRows) -> Counts:
        assert isinstance(window, PackedAnswers)
        counts = super().counts_of(window)
        counts["desirable",] = int(num_desirable(window.rows).sum())
        counts["without_other",] = window.without_other
        return counts

    def facts(self) -> dict[str, Any]:
        own = {name: self.counts[name,] for name in ("desirable", "without_other")}
        return {**super().facts(), **own}


def neighbours(documents: Sequence[Document]) -> list[int | None]:
    """For each document of a window, one whose answer can stand in for its own; None without one.

    The nearest of those before it, as if the window were a circle, with another prompt and another
    answer; or else with another answer. So it depends on nothing but the window.
    """
    prompts, replies = [*map(prompt_of, documents)], [*map(reply_of, documents)]
    count = len(documents)
    found: list[int | None] = []
    for number in range(count):
        near = ((number - step) % count for step in range(1, min(count, 1 + _NEIGHBOURS)))
        differing = [other for other in near if replies[other] != replies[number]]
        apart = (other for other in differing if prompts[other] != prompts[number])
        found.append(next(apart, differing[0] if differing else None))
    return found


def encode_window(
    documents: list[Document],
    first_document: int,
    encoder: Encoder,
    drop_long: bool,
    packing: bool,
    count_bytes: bool,
) -> PackedAnswers:
    """Tokenise and pack a window: the answers of one row group of the dataset.

    Raises:
        RefusedRowError: if the chat template can't render one.
    """
    longest = encoder.block_size // 2
    others = neighbours(documents)
    own = [answers_of(document)[0] for document in documents]
    mismatched = [
        own[number] if other is None else with_answer_of(documents[number], documents[other])
        for number, other in enumerate(others)
    ]
    encoded = [
        encoder.encode_documents(some, first_document, counts)
        for some, counts in ((own, count_bytes), (mismatched, False))
    ]
    answers: list[Answer] = []
    cut = 0
    for document, other, answer, with_other in zip(documents, others, *encoded, strict=True):
        is_long = len(answer.tokens) > longest
        if other is None or (is_long and drop_long):
            continue
        pieces = _cut(answer, longest), _cut(with_other, longest)
        if all(piece.mask.any() for piece in pieces):
            answers.append(Answer(*pieces, label=document["label"]))
            cut += is_long
    packed = pack_answers(answers, encoder.block_size, encoder.dtype, packing)
    packed = with_counts(
        packed, [answer.own for answer in answers], documents, first_document, encoder
    )
    packed = replace(packed, dropped=len(documents) - len(answers), cut=cut)
    return PackedAnswers(**vars(packed), without_other=others.count(None))


def _cut(document: EncodedDocument, longest: int) -> Piece:
    """A piece of at most so many tokens: without the beginning of the prompt, of which a half of
    them is kept, and then without the end of the answer.
    """
    excess = max(0, len(document.tokens) - longest)
    prompt = int(np.argmax(document.mask))
    start = min(excess, max(0, prompt - longest // 2))
    return document.piece(slice(start, start + longest))
