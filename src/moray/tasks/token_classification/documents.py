"""Rows of words and their tags, as documents."""

import json
import re
from typing import Any

from moray.corpus.dataset import Document, RowError
from moray.corpus.values import is_nothing, spelling_of

# Classes count from 0. Others write -1 for a class that isn't known, and -100 where transformers
# shall ignore one.
_NO_TAG = re.compile(r"\s*-\d+\s*")
_FILL_IN = "fill it in, or remove the row"
_TAG_IT = (
    "give each word a tag, such as O (of rows of tokens, write the words instead), or remove the "
    "row"
)


def tagged(tokens: Any, tags: Any) -> Document:
    """Make the document of words and their tags, each a list.

    Raises:
        RowError: if there isn't a tag for each word, or a word or a tag is nothing.
    """
    for name, value in (("tokens", tokens), ("tags", tags)):
        if not isinstance(value, list):
            raise RowError(
                f"got {type(value).__name__} for {name}, expected a list with an entry a word",
                "write lists, in JSON Lines or Parquet",
            )
    if len(tokens) != len(tags):
        raise RowError(
            f"got {len(tokens)} words and {len(tags)} tags, expected a tag for each word",
            "fix the row or remove it",
        )
    words, names = [*map(spelling_of, tokens)], [*map(_name, tags)]
    for what, entries, remedy in (("word", words, _FILL_IN), ("tag", names, _TAG_IT)):
        empty = [number for number, entry in enumerate(entries, 1) if not (entry or "").strip()]
        if empty:
            raise RowError(f"got nothing as {what} {empty[0]} of {len(entries)}", remedy)
    for number, tag in enumerate(names, 1):
        if _NO_TAG.fullmatch(tag or ""):
            raise RowError(
                f"got {tag} as tag {number} of {len(names)}, which stands for no tag", _TAG_IT
            )
    return Document(
        tokens=json.dumps(words, ensure_ascii=False), tags=json.dumps(names, ensure_ascii=False)
    )


def _name(tag: Any) -> str | None:
    """A tag as text; None if there is nothing."""
    if isinstance(tag, list | dict):
        raise RowError(
            f"got {type(tag).__name__} as a tag, expected text or a number",
            "write one tag for each word",
        )
    text = spelling_of(tag)
    return None if text is None or is_nothing(text) else text
