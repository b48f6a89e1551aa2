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


def table(figures: Rounds, unit: str, ours: str) -> str:
    """A Markdown table: median, smallest and largest, and ours ÷ theirs, round by round."""
    lines = [f"| | {unit}, median | range | {ours} ÷ it | range |", "|---|---|---|---|---|"]
    for name, values in figures.items():
        ratios = [mine / other for mine, other in zip(figures[ours], values, strict=True)]
        lines.append(
            f"| {name} | {statistics.median(values):,.0f} | {min(values):,.0f}-{max(values):,.0f} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f}-{max(ratios):.2f} |"
        )
    return "\n".join(lines)
