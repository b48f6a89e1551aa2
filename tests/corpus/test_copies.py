"""Rows to train on that are there already."""

import random
from collections import Counter
from tracemalloc import get_traced_memory, start, stop

import numpy as np
from divided import divide_by_hash

from moray.corpus.copies import Copy, ExactCopies
from moray.corpus.dataset import Document, digest
from moray.corpus.split import Counts


def test_each_row_but_the_first_of_equal_ones_is_a_copy() -> None:
    draw = random.Random(0)
    texts = [str(draw.randrange(300)) for _ in range(1000)]
    splits = [draw.choice(["train", "train", "test"]) for _ in texts]
    copies = ExactCopies()
    identities = np.array([digest(text) for text in texts], "S16")
    is_train = np.array([split == "train" for split in splits])
    for some in (slice(0, 400), slice(400, 401), slice(401, None)):
        copies.note(is_train[some], identities[some])
    seen, expected = set[str](), []
    for split, text in zip(splits, texts, strict=True):
        if split == "train":
            expected.append(Copy.EXACT if text in seen else Copy.NONE)
            seen.add(text)
    assert copies.find().tolist() == expected


def test_nothing_has_no_copies() -> None:
    assert ExactCopies().find().tolist() == []


def test_rows_that_train_has_already_are_duplicates() -> None:
    """Blank ones are blank, and those that are held out stay so."""
    draw = random.Random(1)
    rows = [Document(text=draw.choice([" ", str(draw.randrange(200))])) for _ in range(2000)]

    def split(copies: ExactCopies | None) -> tuple[dict[str, list[str]], Counter[str], int]:
        made: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
        counts = Counts()
        for name, row in divide_by_hash({"train": rows}, 0.2, 0.2, counts, copies):
            made[name].append(row["text"])
        return made, counts.duplicates, counts.blanks.total()

    before, duplicates, blanks = split(None)
    after, more, same_blanks = split(ExactCopies())
    assert after["validation"] == before["validation"]
    assert after["test"] == before["test"]
    assert after["train"] == list(dict.fromkeys(before["train"]))
    assert len(before["train"]) > 2 * len(after["train"])
    dropped = len(before["train"]) - len(after["train"])
    assert more - duplicates == {"train": dropped}
    assert blanks == same_blanks > 0


def test_memory_is_some_bytes_for_each_row() -> None:
    copies, rows = ExactCopies(), 200_000
    identities = np.frombuffer(np.random.default_rng(0).bytes(16 * rows), "S16")
    start()
    for some in np.split(identities, 100):
        copies.note(np.ones(len(some), np.bool_), some)
    assert not copies.find().any()
    _, peak = get_traced_memory()
    stop()
    assert peak < 60 * rows
