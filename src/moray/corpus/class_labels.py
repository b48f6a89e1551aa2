"""Names of classes, and the numbers that stand for them.

The library `datasets` writes the names into Parquet files.
"""

import json
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import pyarrow as pa

Names = Mapping[str, list[str]]
"""The names of the numbers in each column that has any."""


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """The names of classes by column, from the metadata that the library writes."""
    features: Any = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    for key in ("info", "features"):
        features = features.get(key) if isinstance(features, dict) else None
    columns = features.items() if isinstance(features, dict) else ()
    return {column: names for column, feature in columns if (names := _names(feature))}


def _names(feature: Any) -> list[str] | None:
    """The names of a feature, or of the entries of a list."""
    if isinstance(feature, list):
        return _names(feature[0]) if len(feature) == 1 else None
    if isinstance(feature, dict) and "feature" in feature:
        return _names(feature["feature"])
    names = feature.get("names") if isinstance(feature, dict) else None
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else None


def with_names(row: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """A row with the names of its numbers, which are the same in all files.

    -1 stands for nothing; other numbers without a name stay as they are.
    """
    return {column: _name(value, names.get(column)) for column, value in row.items()}


def _name(value: Any, names: list[str] | None) -> Any:
    if names is not None and isinstance(value, list):
        return [_name(one, names) for one in value]
    if names is None or not isinstance(value, int) or value >= len(names):
        return value
    return names[value] if value >= 0 else None


def similar_names(names: Iterable[str]) -> list[list[str]]:
    """Names that differ only in case, white space or Unicode form, such as those of macOS."""
    grouped = (list(group) for _, group in groupby(sorted(names, key=_fold), _fold))
    return [group for group in grouped if len(group) > 1]


def _fold(name: str) -> str:
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())
