"""Rows that are no valid documents."""

import re
from collections.abc import Iterable
from typing import Any, Literal

from moray.corpus.dataset import RowError
from moray.errors import UserError

# Shares of rows to advise, the first of which is the default.
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
# Words that differ between rows with the same fault.
_OWN = re.compile(r"'[^']*'|\d+")


Policy = Literal["refuse", "drop"]


class BadRows:
    """The bad rows of a source, which are refused one by one, or noted and counted."""

    def __init__(self, policy: Policy = "refuse") -> None:
        self._policy = policy
        # The place, the problem and the remedy of each.
        self._faults: list[tuple[str, str, str]] = []

    def __len__(self) -> int:
        return len(self._faults)

    def meet(self, place: str, error: RowError) -> None:
        """Note a row by its place, such as a file and a line, if bad rows are dropped.

        Raises:
            UserError: if they are refused.
        """
        if self._policy == "refuse":
            raise UserError(place, error.problem, error.remedy) from error
        self._faults.append((place, error.problem, error.remedy))

    def as_json(self) -> list[tuple[str, str, str]]:
        """The place, the problem and the remedy of each, for `update`."""
        return self._faults

    def update(self, later: Iterable[tuple[str, str, str]]) -> None:
        """Add the bad rows of a later part of the source."""
        self._faults += ((place, problem, remedy) for place, problem, remedy in later)

    def facts(self) -> dict[str, Any]:
        """Of each reason, the number of `rows`, and the `first` of them with its `problem`."""
        reasons: dict[str, dict[str, Any]] = {}
        for place, problem, _ in self._faults:
            first = {"rows": 0, "first": place, "problem": problem}
            reasons.setdefault(_OWN.sub("", problem), first)["rows"] += 1
        return {"bad_rows": [*reasons.values()]}

    def refuse(self, rows: int, are_all: bool) -> None:
        """Refuse the first bad row, if there is one, with what can be done about all of them.

        Args:
            rows: number of rows that were read and are good.
            are_all: whether all rows were read.

        Raises:
            UserError: if a row is bad.
        """
        if not self._faults:
            return
        place, problem, remedy = self._faults[0]
        total = rows + len(self)
        if rows:
            every = f"{total:,}" if are_all else f"the first {total:,}"
            verb = "is" if len(self) == 1 else "are"
            problem += f" ({len(self):,} of {every} rows {verb} bad)"
        if share := self._enough(total):
            more = "" if share == _SHARES[0] else f" and max_bad_rows: {share}"
            comma = "" if remedy.endswith("?") else ","
            remedy += f"{comma} or set bad_rows: drop{more}"
        raise UserError(place, problem, remedy)

    def check(self, dataset: str, rows: int, most: float) -> None:
        """Check that only a few rows are bad.

        Args:
            dataset: the path of its section.
            rows: number of rows that are good.
            most: the largest share of bad rows.

        Raises:
            UserError: if there are more.
        """
        total = rows + len(self)
        if len(self) <= most * total:
            return
        place, problem, _ = self._faults[0]
        share = self._enough(total)
        raise UserError(
            f"{dataset}.max_bad_rows",
            f"{len(self):,} of {total:,} rows are bad, more than {100 * most:g}%, the first in "
            f"{place}: {problem}",
            f"fix the rows, or set max_bad_rows: {share}"
            if share
            else "fix the rows, or choose another format",
        )

    def _enough(self, total: int) -> float | None:
        """The smallest of some shares that allows these rows; None if half of all are bad.

        So many bad rows are a mistake in the format, not in the rows.
        """
        return next((share for share in _SHARES if len(self) <= share * total), None)
