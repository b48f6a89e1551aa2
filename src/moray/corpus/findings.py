"""What is found out about the rows of a source while they are read, besides their documents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moray.corpus.bad_rows import BadRows
from moray.corpus.columns import Columns
from moray.corpus.remarks import Remarks


@dataclass(frozen=True)
class Findings:
    """What is found out about rows, in their order.

    Attributes:
        bad_rows: rows that are no valid documents.
        columns: the columns of the user's rows, some of which may not be read.
        remarks: remarks about valid rows.
    """

    bad_rows: BadRows = field(default_factory=BadRows)
    columns: Columns = field(default_factory=Columns)
    remarks: Remarks = field(default_factory=Remarks)

    def as_json(self) -> dict[str, Any]:
        """What was found out, for `update`."""
        return {
            "bad_rows": self.bad_rows.as_json(),
            "columns": self.columns.as_json(),
            "remarks": self.remarks.as_json(),
        }

    def update(self, later: Mapping[str, Any]) -> None:
        """Add what was found out about later rows."""
        self.bad_rows.update(later["bad_rows"])
        self.columns.update(later["columns"])
        self.remarks.update(later["remarks"])
