"""Values of tables by what they mean, because types of files write the same value differently.

pandas, for example, makes numbers of a column with a missing value fractional, and the missing one
NaN.
"""

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import Any

# How numbers are written; the parts are sign, digits and fraction, without zeros at both ends.
_NUMBER = re.compile(r"([+-]?)0*([0-9]+)(?:\.([0-9]*?)0*)?")
# How text files write that there is nothing.
_NOTHING = {"", "nan", "NaN"}


def spelling_of(value: Any) -> str | None:
    """A value as text, the same whether a number is whole or fractional; None if it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def is_nothing(text: str) -> bool:
    """Whether text files write a missing value like this."""
    return text.strip() in _NOTHING


def group_key(value: Any) -> str | None:
    """A key that values share if they mean the same group; None if there is no group.

    A number is the same as text, with leading zeros or without, and so is a day or a time.
    """
    if isinstance(value, Mapping):
        # Tables give mappings the keys of all rows.
        inside = {str(name): group_key(entry) for name, entry in value.items()}
        keys = {name: key for name, key in inside.items() if key is not None}
        return json.dumps(keys, sort_keys=True, ensure_ascii=False) if keys else None
    if isinstance(value, list):
        return json.dumps([*map(group_key, value)], ensure_ascii=False) if value else None
    if isinstance(value, date):
        return _moment(value)
    text = unicodedata.normalize("NFC", spelling_of(value) or "").strip()
    if text in _NOTHING:
        return None
    if number := _NUMBER.fullmatch(text):
        sign, digits, fraction = number.groups()
        return "-" * (sign == "-") + digits + (f".{fraction}" if fraction else "")
    try:
        return _moment(datetime.fromisoformat(text))
    except ValueError:
        return text


def _moment(moment: date) -> str:
    """A day, or a time in UTC, in ISO 8601; midnight stands for the day."""
    if not isinstance(moment, datetime):
        return moment.isoformat()
    if moment.tzinfo:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment.date() if moment.time() == time() else moment).isoformat()
