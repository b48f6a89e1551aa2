"""Rows of pairs as rows of texts, which models of texts with labels read."""

import numpy as np

from moray.rows.store import Rows


def as_texts(rows: Rows) -> Rows:
    """The texts of pairs as rows of their own, in turn chosen and rejected; labels are margins."""
    size = rows["tokens"].shape[2]
    fields = [("tokens", "<u4", (size,)), ("length", "<u4"), ("label", "<f4")]
    texts = np.zeros(2 * len(rows), np.dtype(fields))
    texts["label"] = np.repeat(rows["margin"], 2)
    texts["tokens"], texts["length"] = rows["tokens"].reshape(-1, size), rows["length"].ravel()
    return texts
