"""Rows that are no valid documents."""

import re
from collections.abc import Iterable
from typing import Any, Literal

from moray.corpus.dataset import RowError
from moray.errors import UserError

# More than this share is a mistake in the format, not in the rows.
_MOST = 0.01
# Words that differ between rows with the same fault.
_OWN = re.compile(r"'[^']*'|\d+")


Policy = Literal["refuse", "drop"]


class BadRows:
    """The bad rows of a source, which are refused, or dropped and counted."""

    def __init__(self, policy: Policy = "refuse") -> None:
        self._policy = policy
        # The place and the problem of each.
        self._problems: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._problems)

    def meet(self, place: str, error: RowError) -> None:
        """Note a row by its place, such as a file and a line, if bad rows are dropped.

        Raises:
            UserError: if they are refused.
        """
        if self._policy == "refuse":
            raise UserError(place, error.problem, error.remedy) from error
        self._problems.append((place, error.problem))

    def as_json(self) -> list[tuple[str, str]]:
        """The place and the problem of each, for `update`."""
        return self._problems

    def update(self, later: Iterable[tuple[str, str]]) -> None:
        """Add the bad rows of a later part of the source."""
        self._problems += ((place, problem) for place, problem in later)

    def facts(self) -> dict[str, Any]:
        """Of each reason, the number of `rows`, and the `first` of them with its `problem`."""
        reasons: dict[str, dict[str, Any]] = {}
        for place, problem in self._problems:
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
            place, problem = self._problems[0]
            raise UserError(
                path,
                f"{len(self):,} of {total:,} rows are bad, more than {_MOST:.0%}, the first in "
                f"{place}: {problem}",
                "fix the rows, or choose another format",
            )
