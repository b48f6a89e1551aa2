"""Synthetic text of any size, from made-up words with frequencies as in natural language."""

import random
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path

from moray.config.schema.datasets import Synthetic
from moray.corpus.dataset import Document
from moray.corpus.parts import ready_parts
from moray.corpus.sources import OpenSource

_SYLLABLES = [a + b for a in ("", *"bdfgklmnprstv") for b in ("a", "e", "i", "o", "u", "an", "er")]
_WORDS, _SENTENCES = 8_000, 20_000
_SENTENCES_OF_A_DOCUMENT = (3, 40)


def open_source(section: Synthetic, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Open text of the size that the config names."""
    size = round(section.size_gb * 1e9)
    parts = partial(ready_parts, partial(documents, size, section.seed))
    return OpenSource({"train": parts}, {"bytes": size, "seed": section.seed})


def documents(num_bytes: int, seed: int) -> Iterator[Document]:
    """Yield documents of 3 to 40 sentences, `num_bytes` of text in all; the last one is cut.

    Words are drawn with weights 1/rank (Zipf). Sentences are drawn from a fixed set of 20,000, so
    that text is generated faster than it is written. In practice, all documents are different.
    """
    draw = random.Random(seed)
    words = ["".join(draw.choices(_SYLLABLES, k=draw.randint(1, 4))) for _ in range(_WORDS)]
    weights = list(accumulate(1 / rank for rank in range(1, _WORDS + 1)))
    sentences = []
    for _ in range(_SENTENCES):
        choice = draw.choices(words, cum_weights=weights, k=draw.randint(4, 20))
        sentences.append(" ".join(choice).capitalize() + ".")
    size = 0
    while size < num_bytes:
        text = " ".join(draw.choices(sentences, k=draw.randint(*_SENTENCES_OF_A_DOCUMENT)))
        text = text[: num_bytes - size]
        size += len(text)
        yield Document(text=text)
