"""Numbers as a reader wants them: few digits, and units."""

import math
import re
from typing import Any

from markupsafe import Markup, escape

_LONGEST_SETTING = 200
NOTHING = "\N{EN DASH}"


def has_value(value: Any) -> bool:
    """Whether a cell of a data frame holds a value."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _without_digits(value: Any) -> str | None:
    """The text for a value that has no digits, such as infinity; None if it has some."""
    if not has_value(value):
        return NOTHING
    return None if math.isfinite(value) else f"{value:g}"


def count(value: Any) -> str:
    """A number of things: `3.1 M`, `512`."""
    if text := _without_digits(value):
        return text
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.3g} {suffix}"
    return f"{value:,.0f}"


def duration(seconds: Any) -> str:
    """A time: `1 min 31 s`."""
    if text := _without_digits(seconds):
        return text
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def memory(megabytes: Any) -> str:
    """A size in MB or GB."""
    if text := _without_digits(megabytes):
        return text
    return f"{megabytes:,.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"


def figure(value: Any) -> str:
    """A score with four significant digits."""
    if text := _without_digits(value):
        return text
    if value == 0:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def interval(figures: dict[str, float]) -> str:
    """The bounds of a score."""
    return f"[{figure(figures['low'])}, {figure(figures['high'])}]"


def probability(value: float) -> str:
    """A probability: `0.041`, `< 0.001`."""
    if not has_value(value):
        return NOTHING
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def setting(value: Any) -> str:
    """The value of a config key, as in YAML."""
    if not has_value(value):
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:g}" if isinstance(value, float) else str(value)
    # Of a chat template, the beginning.
    return text if len(text) <= _LONGEST_SETTING else f"{text[:_LONGEST_SETTING]}…"


def name(value: str) -> Markup:
    """The name of a run, which may be broken after punctuation."""
    return Markup(re.sub(r"([-_=+])", r"\1<wbr>", str(escape(value))))
