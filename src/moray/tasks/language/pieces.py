"""Documents as tokens, whole and in parts."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.tasks.language.alterations import Alterations

# Whose text a token is. `template`: what the chat template adds to the messages, stop tokens of the
# assistant excepted. A tokenizer's BOS and stop tokens count as their text.
ROLES = ("template", "system", "user", "assistant", "tool", "text", "prompt", "completion")


@dataclass(frozen=True)
class Piece:
    """A document, or a part of a long one.

    Attributes:
        tokens: token ids, shape (length,).
        mask: whether the model is trained to predict each token, shape (length,). Always False
            for the first token, which has no context.
        document: number of the document in its split.
        bytes: UTF-8 bytes of text that the trained tokens cover; stop tokens cover none. 0 unless
            `Encoder.encode` was called with `count_bytes`.
        roles: whose text each token is, as numbers of `ROLES`, shape (length,).
        alterations: what the chat template does to the document's answers besides rendering them;
            only in the first of its pieces.
    """

    tokens: NDArray[np.integer[Any]]
    mask: NDArray[np.bool_]
    document: int
    bytes: int
    roles: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    alterations: Alterations = field(default_factory=Counter)


@dataclass(frozen=True)
class EncodedDocument:
    """A whole document, or one of the renderings of a conversation.

    Attributes:
        number: of the document in its split.
        tokens: token ids, shape (length,).
        mask: whether each token is trained, shape (length,).
        bytes: UTF-8 bytes of text that each token covers, shape (length,); None if they weren't
            counted.
        roles: as in a `Piece`, and so are the alterations.
    """

    number: int
    tokens: NDArray[np.integer[Any]]
    mask: NDArray[np.bool_]
    bytes: NDArray[np.int64] | None
    roles: NDArray[np.uint8]
    alterations: Alterations = field(default_factory=Counter)

    def piece(self, part: slice) -> Piece:
        mask = self.mask[part].copy()
        mask[0] = False
        size = 0 if self.bytes is None else int(self.bytes[part][mask].sum())
        roles = self.roles[part]
        return Piece(self.tokens[part], mask, self.number, size, roles, self.alterations)
