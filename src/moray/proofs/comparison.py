"""A comparison of a result with what a plain library computes, and what follows if they differ."""

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from moray.config.schema.base import Proofs
from moray.console import say
from moray.errors import UserError, first_line
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import PROOF

_LONGEST = 80


@dataclass(frozen=True)
class Comparison:
    """Two figures that should be equal.

    Attributes:
        what: what both are, without an article.
        here: the figure of this workflow; for texts and lists, as JSON has them.
        plain: that of the plain library, computed without code of the compared result.
        library: what computed `plain`, with its version.
        rows: number of the user's rows that were compared; 0 if none were.
        tolerance: largest relative difference of two numbers.
        rounding: largest absolute difference of two numbers, if it is the larger one.
        advisory: whether a difference comes from the user's model or template. It is then reported
            and never refused.
        skipped: why nothing was compared; both figures are None then.
    """

    what: str
    here: Any = None
    plain: Any = None
    library: str = ""
    rows: int = 0
    tolerance: float = 0.0
    rounding: float = 0.0
    advisory: bool = False
    skipped: str | None = None

    @property
    def holds(self) -> bool:
        """Whether both are equal, numbers to within the tolerance."""
        if self.skipped is not None:
            return True
        if isinstance(self.here, float) and isinstance(self.plain, float):
            # NaN is close to nothing. Losses near 0 are differences of larger numbers.
            least = max(self.tolerance / 100, self.rounding)
            return math.isclose(self.here, self.plain, rel_tol=self.tolerance, abs_tol=least)
        return bool(self.here == self.plain)

    @property
    def line(self) -> str:
        """Both figures in a line."""
        if self.skipped is not None:
            return f"{self.what}: not compared, {self.skipped}"
        of_rows = f" on {self.rows:,} of your rows" if self.rows else ""
        here, plain = self.here, self.plain
        if isinstance(here, list) and isinstance(plain, list):
            # The place where they begin to differ, with one entry in front.
            pairs = enumerate(zip(here, plain, strict=False))
            at = next((place for place, (one, other) in pairs if one != other), len(here))
            here, plain = here[max(0, at - 1) :], plain[max(0, at - 1) :]
        return f"{self.what}: {short(here)}, {self.library}: {short(plain)}{of_rows}"


def transformers_version() -> str:
    """The library that most results are compared with."""
    return f"transformers {version('transformers')}"


def collect(what: str, compare: Callable[[], Iterable[Comparison]]) -> list[Comparison]:
    """The comparisons that a function makes.

    A plain library that fails says nothing about the result: its failure is reported and recorded.

    Args:
        what: what is compared, if it fails.
    """
    began = time.monotonic()
    try:
        return list(compare())
    except Exception as error:  # libraries raise anything
        reason = f"the plain library failed ({type(error).__name__}: {first_line(error)})"
        say(f"warning: {what}: not compared, {reason}")
        return [Comparison(what, skipped=reason)]
    finally:
        # In the log.
        print(f"compared {what} in {time.monotonic() - began:.2f} s")


def conclude(comparisons: Sequence[Comparison], mode: Proofs, path: str) -> list[dict[str, Any]]:
    """Say what differs, or refuse to go on; returns the comparisons for a record.

    Args:
        path: of what was made, as `runs.tuned` or `models.tiny`; recorded as `of`.

    Raises:
        UserError: with both figures of the first comparison that doesn't hold, if `mode` is
            `refuse`.
    """
    for one in comparisons:
        if one.holds:
            continue
        if mode == "refuse" and not one.advisory:
            raise UserError(
                path,
                f"differs from the plain library in {one.line}",
                "please report it, or set proofs: warn to go on",
            )
        say(f"warning: {path}: {one.line}")
    return [{"of": path, **asdict(one), "holds": one.holds} for one in comparisons]


def write_proof(folder: Path, records: Sequence[dict[str, Any]], inputs: Iterable[Path]) -> None:
    """Write the `proof.json` of a folder, which its manifest doesn't list.

    Figures of other machines have other last digits, and equal results have equal manifests.

    Args:
        inputs: the manifests of what was compared.
    """
    write_sealed(folder / PROOF, {"comparisons": list(records)}, inputs)


def read_proof(folder: Path) -> list[dict[str, Any]]:
    """The comparisons in a folder's `proof.json`; none if it has no such file."""
    path = folder / PROOF
    if not path.is_file():
        return []
    comparisons: list[dict[str, Any]] = json.loads(path.read_text())["comparisons"]
    return comparisons


def summary(records: Iterable[dict[str, Any]]) -> str | None:
    """The comparisons in a few words; None if nothing was compared."""
    comparisons = [one for one in records if one["skipped"] is None]
    if not comparisons:
        return None
    total, differing = len(comparisons), sum(not one["holds"] for one in comparisons)
    libraries = ", ".join(dict.fromkeys(one["library"] for one in comparisons))
    result = f"{differing} of {total} differ" if differing else f"all {total} equal"
    return f"checked against {libraries}: {result}"


def short(value: Any) -> str:
    """A figure, text or list as it is shown in a line."""
    if isinstance(value, float):
        return f"{value:.6g}"
    # Quotes show white space at the ends.
    is_plain = isinstance(value, str) and value == value.strip()
    text = value if is_plain else json.dumps(value, ensure_ascii=False)
    text = text.replace("\n", "\\n").replace("\r", "\\r")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
