"""Made-up text."""

from collections import Counter
from itertools import islice

import pytest

from moray.tasks.language.sources.synthetic import documents


def texts(size: int, seed: int = 0) -> list[str]:
    return [document["text"] for document in documents(size, seed)]


@pytest.mark.parametrize("size", [1, 100, 12_345, 3_000_000])
def test_there_are_as_many_bytes_as_asked_for(size: int) -> None:
    assert len("".join(texts(size)).encode()) == size


def test_the_seed_makes_the_text() -> None:
    assert texts(10_000, seed=1) == texts(10_000, seed=1)
    assert texts(10_000, seed=1) != texts(10_000, seed=2)


def test_more_text_begins_with_less() -> None:
    assert "".join(texts(50_000)).startswith("".join(texts(20_000)))


def test_nothing_is_made_before_it_is_asked_for() -> None:
    assert len(list(islice(documents(10**15, 0), 5))) == 5


def test_no_document_is_a_copy_and_words_are_frequent_and_rare() -> None:
    found = texts(2_000_000)
    assert len(set(found)) == len(found) > 500
    assert all(text.endswith(".") for text in found[:-1])
    words = Counter(" ".join(found).replace(".", "").lower().split())
    frequencies = [count for _, count in words.most_common()]
    assert len(frequencies) > 1000
    # As ranks grow tenfold, frequencies fall about tenfold.
    assert 3 < frequencies[9] / frequencies[99] < 30
