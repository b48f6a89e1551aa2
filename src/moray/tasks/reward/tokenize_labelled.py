"""Tokenise a dataset of pairs once: a row is one pair, each text cut to `data.block_size`.

A row has the fields of both texts, chosen and rejected, see `rows.as_texts`, the margin of the pair
and its number in the split. Zeros are padding.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from moray.console import say
from moray.corpus.dataset import (
    SPLITS,
    Document,
    RowError,
    group_of,
    halves,
    messages_of,
    read_documents,
    tools_of,
)
from moray.errors import UserError
from moray.model.folder import LOCAL
from moray.provenance.manifest import write_manifest
from moray.rows.store import Counts, Record, Rows, RowsWriter, describe, map_file, write_groups
from moray.stages.store import OpenStore, open_store
from moray.tasks.classification.classifier import config_of
from moray.tasks.classification.survey import REGRESSION
from moray.tasks.classification.tokenize_labelled import TRUNCATION, check_size
from moray.tasks.language.chat import ChatTemplate

Pair = tuple[list[int], list[int]]
"""The tokens of the chosen and of the rejected text."""


def tokenize_labelled(
    dataset: Path,
    model: Path,
    output: Path,
    cfg: dict[str, Any],
    code: str = "",
    execution: dict[str, Any] | None = None,
) -> None:
    """Write the store of a dataset's three splits, and its manifest.

    A store of the same rows, model, settings and code that a killed process has begun is continued.

    Args:
        code, execution: as of `open_store`.

    Raises:
        UserError: if rows are too long for the model, its chat template can't render one, or no
            pair is left.
    """
    tokenizer, config = AutoTokenizer.from_pretrained(model, **LOCAL), config_of(model)
    size = cfg["block_size"]
    check_size(size, tokenizer, config)
    if config.problem_type != REGRESSION:
        what = f"got a model for {config.problem_type}, expected one for a reward"
        raise UserError("model", what, f"set classes_of of the model to {dataset.name}")
    fields = [("tokens", "<u4", (2, size)), ("length", "<u4", (2,)), ("margin", "<f4")]
    record = np.dtype([*fields, ("document", "<u4")])
    encoder = PairEncoder(tokenizer, cfg)
    with open_store(dataset, model, output, cfg, code, execution) as store:
        facts = {
            split: _write(dataset / f"{split}.parquet", store, encoder, record) for split in SPLITS
        }
        write_manifest(
            output,
            task="reward",
            record=describe(record),
            problem_type=REGRESSION,
            label_names=[],
            block_size=size,
            recipe=cfg,
            splits=facts,
        )
    rows, cut, dropped, equal = (
        sum(one[key] for one in facts.values())
        for key in ("rows", "cut_documents", "dropped_documents", "equal_documents")
    )
    say(
        f"tokens {output.name}: {rows:,} pairs"
        + (f", {cut:,} of them cut to {size} tokens a text" if cut else "")
        + (f", {dropped - equal:,} dropped, longer than {size} tokens" if dropped > equal else "")
        + (f", {equal:,} dropped, the same tokens in both answers" if equal else "")
    )


class PairEncoder:
    """Tokenises pairs: whole conversations by the chat template, and texts as the tokenizer does.

    A text is the prompt and the answer as one, and ends with the EOS token if there is one.
    """

    def __init__(self, tokenizer: Any, cfg: dict[str, Any]) -> None:
        self._tokenizer, self.block_size = tokenizer, cfg["block_size"]
        self.pad: int = tokenizer.pad_token_id
        self.drops_long = cfg["long_documents"] == "drop"
        self._special = {*tokenizer.all_special_ids}
        self._chat: ChatTemplate | None = None
        self._template, self._variables = cfg["chat_template"], cfg.get("template_variables")

    def encode(self, documents: Sequence[Document], path: str) -> Iterator[Pair]:
        """The tokens of both texts of each pair.

        Args:
            path: of the dataset in the config, for errors.

        Raises:
            UserError: if the chat template can't render one.
        """
        texts = [*chain.from_iterable(map(halves, documents))]
        if "messages" in texts[0]:
            whole = [self._rendered(text, path) for text in texts]
            tokens = self._tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"]
        else:
            whole = [text["prompt"] + text["completion"] for text in texts]
            tokens = self._tokenizer(whole, verbose=False)["input_ids"]
            if (stop := self._tokenizer.eos_token_id) is not None:
                tokens = [ids if ids[-1:] == [stop] else [*ids, stop] for ids in tokens]
        return zip(tokens[::2], tokens[1::2], strict=True)

    def _rendered(self, text: Document, path: str) -> str:
        if self._chat is None:
            variables = self._variables
            self._chat = ChatTemplate(self._tokenizer, self._template, [], variables=variables)
        messages = messages_of(text)
        try:
            return self._chat.text(messages, tools_of(text))
        except RowError as error:
            begins = (messages[0].get("content") or "")[:40]
            problem = f"{error.problem}, in the conversation that begins {begins!r}"
            raise UserError(path, problem, error.remedy) from error

    def cut(self, pair: Pair) -> Pair:
        """Both texts of a pair without what is beyond the longest that a row holds.

        Both lose the same number of tokens at the beginning of what they share, as many as the
        longer one needs, up to half of the row; then the end of an answer is lost. Special tokens
        at both ends stay: encoders are read at the first one.
        """
        excess = max(map(len, pair)) - self.block_size
        if excess <= 0:
            return pair
        first = int(pair[0][0] in self._special)
        shared = next(
            (place for place, (a, b) in enumerate(zip(*pair, strict=False)) if a != b),
            min(map(len, pair)),
        )
        start = first + min(excess, max(0, shared - first - self.block_size // 2))
        chosen, rejected = (self._without(ids, first, start) for ids in pair)
        return chosen, rejected

    def _without(self, ids: list[int], first: int, start: int) -> list[int]:
        rest = [*ids[:first], *ids[start:]]
        if len(rest) > self.block_size:
            last = ids[-1:] if ids[-1] in self._special else []
            rest = [*rest[: self.block_size - len(last)], *last]
        return rest


def _write(file: Path, store: OpenStore, encoder: PairEncoder, record: Record) -> dict[str, Any]:
    path = f"datasets.{file.parent.name}"
    make = partial(_make_window, encoder=encoder, record=record, path=path)
    with RowsWriter(store.folder, file.stem, journal=store.journal) as writer:
        for _, (rows, counts) in store.windows(file, make, writer, f"tokenize {store.folder.name}"):
            writer.add(rows, len(rows), counts)
        names = ("dropped_documents", "cut_documents", "equal_documents")
        facts = writer.facts() | {name: writer.counts[name,] for name in names}
    if not facts["rows"] and file.stem != "validation":
        raise UserError(
            path,
            f"the {file.stem} split has no pairs left; dropped because they are too long or have "
            f"the same tokens in both answers: {facts['dropped_documents']}",
            f"raise data.block_size ({encoder.block_size})",
        )
    if file.stem == "test":
        groups = [*map(group_of, chain.from_iterable(read_documents(file)))]
        numbers = map_file(store.folder / "test.rows", record, (facts["rows"],))["document"]
        write_groups(store.folder, "test", (groups[one] for one in numbers))
    return facts


def _make_window(
    documents: list[Document],
    first_document: int,
    encoder: PairEncoder,
    record: Record,
    path: str,
) -> tuple[Rows, Counts]:
    """The rows of pairs, and how many were cut or dropped."""
    kept: list[tuple[int, Pair, float]] = []
    counts = Counts()
    with TRUNCATION:
        pairs = [*encoder.encode(documents, path)]
    for number, (document, pair) in enumerate(zip(documents, pairs, strict=True), first_document):
        is_long = max(map(len, pair)) > encoder.block_size
        short = encoder.cut(pair)
        is_equal = short[0] == short[1]
        if is_equal or (is_long and encoder.drops_long):
            counts["dropped_documents",] += 1
            counts["equal_documents",] += is_equal
        else:
            counts["cut_documents",] += is_long
            kept.append((number, short, document.get("margin") or 0.0))
    return _rows(kept, encoder.pad, record), counts


def _rows(kept: Sequence[tuple[int, Pair, float]], pad: int, record: Record) -> Rows:
    rows = np.zeros(len(kept), record)
    rows["tokens"] = pad
    for row, (number, pair, margin) in zip(rows, kept, strict=True):
        row["margin"], row["document"] = margin, number
        for place, ids in enumerate(pair):
            row["tokens"][place, : len(ids)], row["length"][place] = ids, len(ids)
    return rows
