"""What lies in the rows of a split, by its segments alone."""

from moray.tasks.language.pieces import Piece
from moray.tasks.language.rows import TRAINED, PackedRows, Segment, StoredSplit


def pieces_of(packed: PackedRows | StoredSplit, row: int) -> list[Piece]:
    """The pieces of a row, and a check that they lie side by side from its start."""
    tokens, flags = packed.rows["tokens"][row], packed.rows["flags"][row]
    first, place = row * len(tokens), 0
    starts = packed.segments[:, Segment.START]
    mine = packed.segments[(starts >= first) & (starts < first + len(tokens))]
    found = []
    for start, length, document, size in mine.tolist():
        assert start == first + place, "segments of a row lie side by side"
        part = slice(place, place + length)
        found.append(Piece(tokens[part], (flags[part] & TRAINED).astype(bool), document, size))
        place += length
    assert place <= len(tokens)
    return found
