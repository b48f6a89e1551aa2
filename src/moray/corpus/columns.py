"""Columns of the user's rows: which there are, and which of them are read."""

import difflib
from collections.abc import Mapping
from typing import Any

from moray.errors import UserError

# Columns that other trainers read beside a text or a conversation.
_DECISIVE = {
    *("image", "images", "video", "videos", "audio", "audios"),
    *("system", "system_prompt", "history", "documents"),
    *("tools", "functions", "function"),
    *("weight", "weights", "sample_weight", "loss", "loss_weight", "train", "trainable"),
    *("mask", "loss_mask", "completion_mask", "assistant_masks", "labels", "kto_tag"),
    *("chat_template_kwargs", "enable_thinking"),
    *("reasoning", "reasoning_content", "thinking"),
}
# With an answer, a label says whether it is a good one (KTO); with a text, what it is about.
_DECISIVE_OF_ANSWERS = {"label"}
_SHOWN = 10


class Columns:
    """The columns of a source's rows, which may have different ones.

    Attributes:
        read: columns whose values become part of documents, whether or not rows have them.
    """

    def __init__(self) -> None:
        # Mappings, because their order is that of the rows.
        self._there: dict[str, None] = {}
        self._filled: dict[str, None] = {}
        self.read = set[str]()

    def meet(self, row: Mapping[str, Any]) -> None:
        """Note the columns of a row; called for every one, so most need only a comparison."""
        filled = self._filled
        if row.keys() <= filled.keys():
            return
        for name, value in row.items():
            if name not in filled:
                self._there[name] = None
                if not _is_empty(value):
                    filled[name] = None

    def as_json(self) -> dict[str, list[str]]:
        """The names, for `update`."""
        return {"there": [*self._there], "filled": [*self._filled], "read": sorted(self.read)}

    def update(self, later: Mapping[str, list[str]]) -> None:
        """Add the columns of a later part of the source."""
        self._there |= dict.fromkeys(later["there"])
        self._filled |= dict.fromkeys(later["filled"])
        self.read.update(later["read"])

    def unused(self) -> list[str]:
        """Columns that have a value in some row and become part of no document."""
        # A spreadsheet's empty columns have no names.
        return [name for name in self._filled if name.strip() and name not in self.read]

    def line_about_columns(self, dataset: str, answers: bool) -> str | None:
        """A line about the columns of a dataset that are not used; None if all are used.

        Args:
            answers: whether rows are answers to prompts.
        """
        unused = self.unused()
        if not unused:
            return None
        line = f"dataset {dataset}: columns that are not used: {_shortened_list(unused)}"
        decisive = _DECISIVE | _DECISIVE_OF_ANSWERS if answers else _DECISIVE
        ignored = [name for name in unused if name.lower() in decisive]
        if not ignored:
            return line
        what = "they" if ignored == unused and len(ignored) > 1 else _shortened_list(ignored)
        return f"warning: {line}; rows are trained as if {what} weren't there"

    def check(self, columns: Mapping[str, str], path: str) -> None:
        """Check that each column that the user named is in some row.

        Args:
            path: the key path of the names.

        Raises:
            UserError: if one is in none.
        """
        for name, column in columns.items():
            if column != name and column not in self._there:
                near = difflib.get_close_matches(column, self._there, n=1)
                raise UserError(
                    f"{path}.{name}",
                    f"no row has a column {column}, only {_shortened_list([*self._there])}",
                    f"did you mean {near[0]}?" if near else "name another, or remove the key",
                )


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _shortened_list(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
