"""Which rows of a dataset's split belong together, kept beside the rows that are made of it."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def write_groups(store: Path, split: str, groups: Iterable[str]) -> None:
    """Write which documents of a split belong together: those of equal groups."""
    first: dict[bytes, int] = {}
    numbers = [
        first.setdefault(hashlib.blake2b(group.encode(), digest_size=16).digest(), number)
        for number, group in enumerate(groups)
    ]
    np.array(numbers, "<i8").tofile(_file(store, split))


def groups_of(store: Path, split: str, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first document of the group of each document, by their numbers in the split."""
    return np.fromfile(_file(store, split), "<i8")[documents]


def _file(store: Path, split: str) -> Path:
    return store / f"{split}.groups"
