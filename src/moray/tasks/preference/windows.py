"""Windows of a split of pairs: those of one row group of the dataset, tokenised and packed."""

from moray.corpus.document import Document
from moray.tasks.language.encode import Encoder
from moray.tasks.preference.encode import PairEncoder
from moray.tasks.preference.rows import PackedPairs, pack_pairs


def encode_window(
    documents: list[Document],
    first_document: int,
    encoder: Encoder,
    drop_long: bool,
    packing: bool,
    count_bytes: bool,
) -> PackedPairs:
    """Tokenise and pack a window; deterministic in its arguments.

    Args:
        documents: the pairs of a row group.
        first_document: number of the first one in its split.
        encoder: tokenises each half of a pair.
        drop_long: whether to drop pairs that are too long instead of truncating them.
        packing: whether pairs share rows.
        count_bytes: whether to count the bytes of each answer.

    Raises:
        UserError: naming the row that can't be encoded.
    """
    pairs = PairEncoder(encoder, drop_long).encode(documents, first_document, count_bytes)
    return pack_pairs(pairs, encoder.block_size, encoder.dtype, packing)
