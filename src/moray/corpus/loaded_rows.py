"""Rows of a dataset on the Hub that are read from files or from the library's copy."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import datasets
import pyarrow as pa

# In a table.
ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class LoadedRows:
    """The rows of a split expression.

    Attributes:
        tables: the rows, from the start at each call.
        features: the types of the columns.
        num_bytes: size of what is read.
    """

    tables: Callable[[], Iterator[pa.Table]]
    features: datasets.Features
    num_rows: int
    num_bytes: int


def decode(table: pa.Table, features: datasets.Features) -> datasets.Dataset:
    """The rows of a table as the library gives them to Python, such as JSON that is parsed."""
    # Computing a fingerprint takes longer than reading the rows.
    return datasets.Dataset(table, datasets.DatasetInfo(features=features), fingerprint="")


def class_names_of(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of the numbers in each column that has any."""
    return {
        column: feature.names
        for column, one in features.items()
        # Of a list, its entries'.
        if isinstance(feature := getattr(one, "feature", one), datasets.ClassLabel)
    }
