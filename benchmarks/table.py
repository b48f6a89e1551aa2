"""Rounds of measurements as a table: median and spread of each, and ratios within a round."""

import statistics
from collections.abc import Callable, Mapping

Rounds = Mapping[str, list[float]]


def alternate(
    contestants: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Let each have its turn in every round, so that a slow minute hits all of them.

    Args:
        contestants: each returns its figure, higher is better.
        rounds: how often; one more comes before, which doesn't count.
    """
    for contestant in contestants.values():
        contestant()
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            figures[name].append(contestant())
    return figures


def table(
    figures: Rounds,
    unit: str,
    ours: str,
    more: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """A Markdown table: median, smallest and largest, and ours ÷ theirs, round by round.

    Args:
        figures: of each contestant, one a round.
        ours: the contestant that is divided by the others.
        more: further columns, by title and contestant.
    """
    more = more or {}
    titles = ["", f"{unit}, median", "range", f"speed of {ours} ÷ this row's", "range", *more]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, values in figures.items():
        ratios = [mine / other for mine, other in zip(figures[ours], values, strict=True)]
        cells = [
            name,
            f"{statistics.median(values):,.0f}",
            f"{min(values):,.0f}-{max(values):,.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
            *(column[name] for column in more.values()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shares(figures: Rounds, wholes: Rounds) -> dict[str, str]:
    """Median, smallest and largest share of a whole, round by round, in per cent.

    Args:
        figures: of each contestant, one a round.
        wholes: what each contestant's figures are shares of, in the same rounds.
    """
    cells = {}
    for name, values in figures.items():
        found = [value / whole for value, whole in zip(values, wholes[name], strict=True)]
        cells[name] = f"{statistics.median(found):.0%} ({min(found):.0%}-{max(found):.0%})"
    return cells
