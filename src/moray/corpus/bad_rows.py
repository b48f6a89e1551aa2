"""Rows that are no valid documents."""

import re
from copy import copy
from typing import Any, Literal, Self

from moray.corpus.dataset import RowError
from moray.errors import UserError

# More than this share is a mistake in the format, not in the rows.
_MOST = 0.01
# Words that differ between rows with the same fault.
_OWN = re.compile(r"'[^']*'|\d+")


class BadRows:
    """The bad rows of a source, which are refused, or dropped and counted.

    A source is read more than once, so a row is identified by its split and its place there.
    """

    def __init__(self, policy: Literal["refuse", "drop"] = "refuse") -> None:
        self._policy = policy
        self._split = ""
        self._problems: dict[tuple[str, str], str] = {}

    def of(self, split: str) -> Self:
        """The bad rows of a split, counted together with those of the others."""
        part = copy(self)
        part._split = split
        return part

    def __len__(self) -> int:
        return len(self._problems)

    def meet(self, place: str, error: RowError) -> None:
        """Note a row by its place, such as a file and a line, if bad rows are dropped.

        Raises:
            UserError: if they are refused.
        """
        if self._policy == "refuse":
            raise UserError(place, error.problem, error.remedy) from error
        self._problems[self._split, place] = error.problem

    def facts(self) -> dict[str, Any]:
        """Of each reason, the number of `rows`, and the `first` of them with its `problem`."""
        reasons: dict[str, dict[str, Any]] = {}
        for (_, place), problem in self._problems.items():
            first = {"rows": 0, "first": place, "problem": problem}
            reasons.setdefault(_OWN.sub("", problem), first)["rows"] += 1
        return {"bad_rows": [*reasons.values()]}

    def check(self, path: str, rows: int) -> None:
        """Check that only a few rows are bad.

        Raises:
            UserError: if there are more.
        """
        total = rows + len(self)
        if len(self) > _MOST * total:
            (_, place), problem = next(iter(self._problems.items()))
            raise UserError(
                path,
                f"{len(self):,} of {total:,} rows are bad, more than {_MOST:.0%}, the first in "
                f"{place}: {problem}",
                "fix the rows, or choose another format",
            )
