"""The interface of a metric: a module with a function that judges continuations."""

from collections.abc import Sequence
from typing import Any, Protocol


class Metric(Protocol):
    """A module of this package."""

    def judged(
        self, prompts: Sequence[str], continuations: Sequence[str], references: Sequence[str]
    ) -> list[Any]:
        """What the metric says of each continuation: a number, or whether something is so.

        Args:
            prompts: the prompts.
            continuations: what a model wrote after each of them.
            references: what follows them in their documents.
        """
