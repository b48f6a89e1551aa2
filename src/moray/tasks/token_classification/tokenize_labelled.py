"""Tokenise a dataset of words with tags once: a row is one text, cut to `data.block_size`.

A text is its words with spaces between them, as a pipeline gets it. The tag of a word is that of
its first token. A row has the field `labels`: for such tokens the number of the tag, from 1; zeros
are other tokens, and padding. Words without a token in their row, cut or empty to the tokenizer,
have no label. The file `test.tags` has the tags of all words to test on, a zero behind each text.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer

from moray.console import say
from moray.corpus.dataset import (
    SPLITS,
    Document,
    group_of,
    read_documents,
    tags_of,
    words_of,
)
from moray.errors import UserError
from moray.model.folder import LOCAL
from moray.provenance.manifest import write_manifest
from moray.rows.store import Counts, Record, Rows, RowsWriter, describe, write_groups
from moray.stages.store import OpenStore, open_store
from moray.tasks.classification.classifier import config_of, names_of
from moray.tasks.classification.survey import OF_WORDS
from moray.tasks.classification.tokenize_labelled import TRUNCATION, check_size

_TEST_TAGS = "test.tags"
_SHOWN = 3


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
        UserError: if a word has a tag that the model doesn't have, rows are too long for it, or its
            tokenizer doesn't say which words its tokens are of.
    """
    tokenizer, config = AutoTokenizer.from_pretrained(model, **LOCAL), config_of(model)
    size, names = cfg["block_size"], names_of(config)
    check_size(size, tokenizer, config)
    if not tokenizer.is_fast:
        what = f"its tokenizer ({type(tokenizer).__name__}) doesn't say where tokens are in a text"
        raise UserError(f"models.{model.name}", what, "use one with a tokenizer.json")
    fields: list[Any] = [("tokens", "<u4", (size,)), ("length", "<u4"), ("labels", "<u2", (size,))]
    if "token_type_ids" in tokenizer.model_input_names:
        fields.insert(1, ("types", "u1", (size,)))
    record = np.dtype(fields)
    encoder = _Encoder(tokenizer, names, record, dataset.name)
    prior, unread = [0] * len(names), Counter[str]()
    with open_store(dataset, model, output, cfg, code, execution) as store:
        facts = {}
        for split in SPLITS:
            facts[split], counts = _write(dataset / f"{split}.parquet", store, encoder)
            unread.update({word[0]: n for (kind, *word), n in counts.items() if kind == "unread"})
            if split == "train":
                prior = [counts["tag", str(number)] for number in range(1, 1 + len(names))]
        held_out = chain.from_iterable(read_documents(dataset / "test.parquet"))
        write_groups(output, "test", map(group_of, held_out))
        write_manifest(
            output,
            task="token_classification",
            record=describe(record),
            problem_type=OF_WORDS,
            label_names=names,
            # What a model knows that reads nothing: how many words have each tag.
            prior=prior,
            block_size=size,
            recipe=cfg,
            splits=facts,
        )
    keys = ("rows", "cut_documents", "cut_words")
    rows, cut, words = (sum(one[key] for one in facts.values()) for key in keys)
    lost = (
        f", {cut:,} of them cut to {size} tokens, without {words:,} of their words" if cut else ""
    )
    say(f"tokens {output.name}: {rows:,} texts with words of {len(names)} tags{lost}")
    if unread:
        shown = ", ".join(map(ascii, [*unread][:_SHOWN]))
        say(
            f"warning: tokens {output.name}: {unread.total():,} words are nothing to the "
            f"tokenizer, such as {shown}; they aren't trained on, and are scored as if tagged O"
        )


def _write(file: Path, store: OpenStore, encoder: "_Encoder") -> tuple[dict[str, Any], Counts]:
    """Write a split; returns its facts, and all that was counted."""
    with RowsWriter(store.folder, file.stem, journal=store.journal) as writer:
        tags_file = writer.open(_TEST_TAGS) if file.stem == "test" else None
        label = f"tokenize {store.folder.name}"
        for _, (rows, counts, tags) in store.windows(file, encoder.make_window, writer, label):
            if tags_file:
                tags_file.write(tags.data)
            writer.add(rows, int(np.count_nonzero(rows["labels"])), counts)
        counts = writer.counts
        names = ("cut_documents", "cut_words")
        return writer.facts() | {name: counts[name,] for name in names}, counts


class _Encoder:
    """Makes rows of documents."""

    def __init__(self, tokenizer: Any, names: Sequence[str], record: Record, dataset: str) -> None:
        self._tokenizer, self._record, self._dataset = tokenizer, record, dataset
        self._numbers = {name: number for number, name in enumerate(names, 1)}

    def make_window(
        self, documents: list[Document], first_document: int
    ) -> tuple[Rows, Counts, NDArray[np.int32]]:
        """The rows of documents, what is counted of them, and their content of `test.tags`."""
        counts = Counts()
        rows = np.zeros(len(documents), self._record)
        rows["tokens"] = self._tokenizer.pad_token_id
        of_all = []
        with TRUNCATION:
            for number, document in enumerate(documents):
                tags, firsts, cut, unread = self._fill(rows[number : number + 1], document)
                counts.update(("unread", word) for word in unread)
                counts["cut_documents",] += bool(cut)
                counts["cut_words",] += cut
                of_all.append(np.append(np.where(firsts < 0, -tags, tags), 0))
        signed = np.concatenate(of_all).astype("<i4")
        times = np.bincount(np.abs(signed), minlength=1).tolist()
        counts.update({("tag", str(tag)): n for tag, n in enumerate(times) if tag and n})
        return rows, counts, signed

    def _fill(
        self, row: NDArray[np.void], document: Document
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], int, list[str]]:
        """Write a text into a row, shape (1,).

        Returns:
            The number of each word's tag, from 1; the position of its first token, or -1; how many
            words the row was cut before; and the others that have no token.
        """
        words, size = words_of(document), self._record["tokens"].shape[0]
        text = " ".join(words)
        found = self._tokenizer(text, truncation=True, max_length=size, return_offsets_mapping=True)
        tokens, tags = found["input_ids"], self._tags(document)
        row["tokens"][0, : len(tokens)], row["length"] = tokens, len(tokens)
        if "types" in (row.dtype.names or ()):
            row["types"][0, : len(tokens)] = found["token_type_ids"]
        firsts = first_tokens(words, found["offset_mapping"], found.sequence_ids(0))
        there = firsts >= 0
        row["labels"][0, firsts[there]] = tags[there]
        whole = len(tokens) < size or len(tokens) == len(
            self._tokenizer(text, verbose=False)["input_ids"]
        )
        inside = np.ones(len(words), bool)
        if not whole:
            # Which side is cut is a setting of the tokenizer.
            places = np.flatnonzero(there)
            inside[:] = False
            inside[places.min(initial=len(words)) : places.max(initial=-1) + 1] = True
        unread = [words[place] for place in np.flatnonzero(inside & ~there)]
        return tags, firsts, int((~inside).sum()), unread

    def _tags(self, document: Document) -> NDArray[np.int64]:
        names = tags_of(document)
        if others := [name for name in names if name not in self._numbers]:
            what = f"got tag {others[0]}, which isn't a class of the model"
            raise UserError(f"datasets.{self._dataset}", what, "set classes_of of the model to it")
        return np.array([self._numbers[name] for name in names], np.int64)


def first_tokens(
    words: Sequence[str], offsets: Sequence[tuple[int, int]], sequences: Sequence[int | None]
) -> NDArray[np.int64]:
    """The position of the first token of each word, or -1 if it has none.

    Args:
        offsets: where each token is in the words with spaces between them.
        sequences: None for tokens that the tokenizer adds to a text.
    """
    # The space before a word belongs to it, as many tokenizers have it.
    begins = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1] - 1
    own = np.array([number is not None for number in sequences], bool)
    positions = np.flatnonzero(own)
    starts = np.array([start for start, _ in offsets], np.int64)[own]
    found = np.full(len(words), -1, np.int64)
    # Backwards, so that the first one stays.
    found[(np.searchsorted(begins, starts, "right") - 1)[::-1]] = positions[::-1]
    return found


def read_tags(store: Path) -> list[NDArray[np.int64]]:
    """The tags of each test text, from 1; negative of words without a token in its row."""
    tags = np.fromfile(store / _TEST_TAGS, "<i4").astype(np.int64)
    parts = np.split(tags, np.flatnonzero(tags == 0) + 1)[:-1]
    return [part[:-1] for part in parts]
