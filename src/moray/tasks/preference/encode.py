"""From pairs of answers to pairs of pieces, each with at most half a row's tokens."""

from dataclasses import dataclass

import numpy as np

from moray.corpus.document import Document, halves
from moray.tasks.language.encode import Encoded, Encoder, Piece


@dataclass(frozen=True)
class Pair:
    """A prompt with the chosen answer, and the same prompt with the rejected one."""

    chosen: Piece
    rejected: Piece

    def __len__(self) -> int:
        """Number of tokens of both together."""
        return len(self.chosen.tokens) + len(self.rejected.tokens)


@dataclass(frozen=True)
class EncodedPairs:
    """The pairs of some documents.

    Attributes:
        pairs: the pairs, in the order of their documents.
        dropped: number of documents without a pair: too long, or with the same tokens in both
            answers, which can also come from truncation.
        truncated: number of pairs that were cut.
    """

    pairs: list[Pair]
    dropped: int
    truncated: int


class PairEncoder:
    """Tokenises pairs.

    If a half is longer than half a row, the pair is dropped, or it is truncated: both prompts lose
    the same number of tokens at their beginning, as many as the longer half needs, but keep a
    quarter of a row; then answers that are still too long lose their end.
    """

    def __init__(self, encoder: Encoder, drop_long: bool) -> None:
        """Configure the encoder.

        Args:
            encoder: tokenises each half as a language model's document.
            drop_long: whether to drop pairs that are too long instead of truncating them.
        """
        self._encoder = encoder
        self._drop_long = drop_long
        self._longest = encoder.block_size // 2

    def encode(
        self, documents: list[Document], first_document: int, count_bytes: bool
    ) -> EncodedPairs:
        """Tokenise pairs.

        Args:
            documents: rows of a dataset, all text or all conversations.
            first_document: number of the first one in its split.
            count_bytes: whether to count the bytes of each answer.

        Raises:
            UserError: naming the row that the chat template can't render.
        """
        # Documents of one kind at a time, as the encoder expects them.
        encoded = [
            self._encoder.encoded(list(half), first_document, count_bytes)
            for half in zip(*map(halves, documents), strict=True)
        ]
        pairs: list[Pair] = []
        dropped = truncated = 0
        for number, (chosen, rejected) in enumerate(zip(*encoded, strict=True), first_document):
            too_long = max(len(chosen.tokens), len(rejected.tokens)) > self._longest
            if not (too_long and self._drop_long):
                pair = self._cut(chosen, rejected, number)
                if _prefers(pair):
                    pairs.append(pair)
                    truncated += too_long
                    continue
            dropped += 1
        return EncodedPairs(pairs, dropped, truncated)

    def _cut(self, chosen: Encoded, rejected: Encoded, number: int) -> Pair:
        excess = max(0, max(len(chosen.tokens), len(rejected.tokens)) - self._longest)
        prompt = min(int(half.mask.argmax()) for half in (chosen, rejected))
        start = min(excess, max(0, prompt - self._longest // 2))
        part = slice(start, start + self._longest)
        return Pair(_piece(chosen, part, number), _piece(rejected, part, number))


def _prefers(pair: Pair) -> bool:
    """Whether both answers have trained tokens, and they differ."""
    if np.array_equal(pair.chosen.tokens, pair.rejected.tokens):
        return False
    return bool(pair.chosen.mask.any() and pair.rejected.mask.any())


def _piece(half: Encoded, part: slice, number: int) -> Piece:
    mask = half.mask[part].copy()
    mask[0] = False
    size = 0 if half.bytes is None else int(half.bytes[part][mask].sum())
    return Piece(half.tokens[part], mask, number, size)
