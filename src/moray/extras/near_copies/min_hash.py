"""Rows whose words are nearly those of another row.

Each text is a set of runs of five words. How much two sets share is estimated from the smallest
hashes of both (Broder, "On the resemblance and containment of documents", 1997); only those are
compared that share a band of eight hashes (Leskovec et al., "Mining of Massive Datasets", 3.4).
Copies of copies are copies, as in the deduplication of large corpora (Lee et al., 2022).
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rensa import RMinHash
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from moray.corpus.copies import Copy, ExactCopies
from moray.corpus.dataset import Document, messages_of, plain_text

_WORDS_IN_A_RUN = 5
# 16 bands of 8: texts that share 0.8 of their runs meet in a band with probability 0.95, those that
# share half of them with 0.06.
_BANDS, _HASHES_IN_A_BAND = 16, 8
_HASHES = _BANDS * _HASHES_IN_A_BAND
_SEED = 0
# Share of the runs of two texts that are in both.
_NEAR = 0.8
_AT_ONCE = 2**16
# Scripts without spaces between words (Thai, Lao, Burmese, Khmer, kana, Han) by the character.
_WORD = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
    r"|[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]+"
)


class NearCopies(ExactCopies):
    """Finds rows to train on that are nearly another row; see the module.

    Hashes are in a temporary file, 512 bytes for each row. Memory is about 100 bytes for each.
    """

    def __init__(self, folder: Path) -> None:
        """Prepare to note rows; the file is in this folder, without a name."""
        super().__init__()
        # Closed with this object.
        self._file: Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._is_train = bytearray()

    def note(
        self,
        is_train: NDArray[np.bool_],
        identities: NDArray[np.bytes_],
        sketches: NDArray[np.bytes_] | None = None,
    ) -> None:
        super().note(is_train, identities)
        assert sketches is not None
        self._file.write(sketches.tobytes())
        self._is_train += is_train.tobytes()

    def find(self) -> NDArray[np.uint8]:
        copies = super().find()
        self._file.flush()
        is_train = np.frombuffer(self._is_train, np.uint8).astype(np.bool_)
        if not copies.size:
            return copies
        shape = (len(is_train), _HASHES)
        hashes: NDArray[np.uint32] = np.memmap(self._file, "<u4", "r", shape=shape)
        clusters = _clusters(hashes, is_train)
        of_train = clusters[is_train]
        has_held_out = np.zeros(len(is_train), np.bool_)
        has_held_out[clusters[~is_train]] = True
        _, first = np.unique(of_train, return_index=True)
        is_first = np.zeros(len(of_train), np.bool_)
        is_first[first] = True
        copies[(copies == Copy.NONE) & has_held_out[of_train]] = Copy.NEAR_HELD_OUT
        copies[(copies == Copy.NONE) & ~is_first] = Copy.NEAR
        return copies


def sketches(documents: Sequence[Document]) -> NDArray[np.uint32]:
    """The smallest hashes of the runs of each document, shape (documents, 128)."""
    texts = [runs_of(_compared(document)) for document in documents]
    matrix = RMinHash.digest_matrix_from_token_sets(texts, _HASHES, _SEED)
    return np.array(matrix.to_rows(), "<u4").reshape(-1, _HASHES)


def runs_of(text: str) -> set[str]:
    """The runs of five words of a text; all of its words if there are fewer, itself if none."""
    words = _WORD.findall(text.lower()) or [text]
    starts = range(max(1, len(words) - _WORDS_IN_A_RUN + 1))
    return {" ".join(words[start : start + _WORDS_IN_A_RUN]) for start in starts}


def _compared(document: Document) -> str:
    """The text of a row, of a conversation without the system's, which many share."""
    if "messages" not in document:
        return plain_text(document)
    messages = (one for one in messages_of(document) if one["role"] != "system")
    return "\n".join(message["content"] or "" for message in messages)


def _clusters(hashes: NDArray[np.uint32], is_train: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The number of each text's cluster: that of texts which are near another one of it."""
    pairs = np.concatenate([*_meetings(hashes, is_train)])
    pairs = pairs[_are_near(hashes, pairs)]
    links = coo_array((np.ones(len(pairs), np.bool_), pairs.T), (len(hashes), len(hashes)))
    clusters: NDArray[np.int32] = connected_components(links, directed=False)[1]
    return clusters


def _meetings(
    hashes: NDArray[np.uint32], is_train: NDArray[np.bool_]
) -> Iterator[NDArray[np.int64]]:
    """Pairs of texts that share a band, shape (pairs, 2): the first one there, and each other.

    Those that are held out come first.
    """
    factors = np.random.default_rng(_SEED).integers(2**63, size=_HASHES_IN_A_BAND, dtype=np.uint64)
    factors = 2 * factors + np.uint64(1)
    for start in range(0, _HASHES, _HASHES_IN_A_BAND):
        band = hashes[:, start : start + _HASHES_IN_A_BAND]
        # Different bands may have the same key by chance; `_are_near` compares them.
        parts = (band[begin : begin + _AT_ONCE] for begin in range(0, len(band), _AT_ONCE))
        keys = np.concatenate([(part * factors).sum(axis=1, dtype=np.uint64) for part in parts])
        order = np.lexsort((is_train, keys))
        is_new = np.append(True, keys[order][1:] != keys[order][:-1])
        firsts = order[np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))]
        yield np.stack((firsts, order), axis=1)[~is_new]


def _are_near(hashes: NDArray[np.uint32], pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    near = np.zeros(len(pairs), np.bool_)
    for start in range(0, len(pairs), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        first, other = hashes[pairs[some, 0]], hashes[pairs[some, 1]]
        near[some] = (first == other).mean(axis=1) >= _NEAR
    return near
