"""Rows of Arrow tables as JSON would have them.

Arrow gives each mapping of a column the keys of all the others, as nulls: a tool call, for example,
would have the arguments of all other tools. They are removed. JSON in a column keeps its own.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from moray.corpus.dataset import RowError
from moray.corpus.remarks import Remarks
from moray.errors import UserError

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row | RowError]]
"""Places in a file, and the rows there, or what is wrong with them."""

# Keys of tools and their calls below which a null can mean something.
_MAY_HAVE_NULLS = {"arguments", "parameters"}
_NULLS = (
    "nulls in arguments of tool calls and in parameters of tools are left out, because a table "
    "can't tell them from keys that a row doesn't have; to keep them, write arguments and "
    "parameters as JSON text"
)


def check_header(names: Sequence[str], place: str) -> None:
    """Check that the columns of a table have different names.

    Raises:
        UserError: with its place, if they don't.
    """
    # Empty names are those of a spreadsheet's empty columns.
    for name, times in Counter(filter(None, names)).items():
        if times > 1:
            raise UserError(place, f"got the column {name} {times} times", "rename or remove it")


class TableRows:
    """Converts the rows of a table.

    Attributes:
        place: what remarks call the table.
        remarks: gets those about its rows.
        parsed: whether JSON in its columns is parsed already.
    """

    def __init__(
        self, schema: pa.Schema, place: str, remarks: Remarks, parsed: bool = False
    ) -> None:
        self._types = dict(zip(schema.names, schema.types, strict=True))
        self._place, self._remarks, self._parsed = place, remarks, parsed

    def as_json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row with the keys and values that it had before it was put into the table.

        Raises:
            RowError: if JSON in it is invalid.
        """
        return {name: self._value(value, self._types[name], False) for name, value in row.items()}

    def _value(self, value: Any, kind: pa.DataType, can_mean_null: bool) -> Any:
        if isinstance(kind, pa.JsonType) and isinstance(value, str) and not self._parsed:
            return _json(value)
        if pa.types.is_struct(kind) and isinstance(value, Mapping):
            if can_mean_null and None in value.values():
                self._remarks.add(f"nulls in {self._place}", f"{self._place}: {_NULLS}")
            return {
                part.name: self._value(
                    value[part.name], part.type, can_mean_null or part.name in _MAY_HAVE_NULLS
                )
                for part in kind
                if value.get(part.name) is not None
            }
        if pa.types.is_map(kind) and isinstance(value, list):
            # Only of maps, each row has its own keys.
            return {key: self._value(one, kind.item_type, can_mean_null) for key, one in value}
        if isinstance(value, list) and hasattr(kind, "value_type"):
            return [self._value(entry, kind.value_type, can_mean_null) for entry in value]
        return value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(f"invalid JSON in a column ({error})", "fix the row") from error
