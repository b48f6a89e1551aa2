"""The interface of a metric: a module with two functions, imported by its name in the config."""

from collections.abc import Sequence
from typing import Any, Protocol


class Metric(Protocol):
    """A module of this package."""

    def applies_to(
        self, prompts: Sequence[str], references: Sequence[str], formats: Sequence[str]
    ) -> list[int]:
        """The numbers of the prompts whose continuations the metric can judge.

        Args:
            prompts: the prompts.
            references: what follows them in their documents.
            formats: the format of each prompt's dataset.
        """

    def judged(
        self, prompts: Sequence[str], continuations: Sequence[str], references: Sequence[str]
    ) -> list[Any]:
        """What the metric says of each continuation: a number, or whether something is so.

        Booleans are reported as the share that is true, numbers as their mean.

        Args:
            prompts: the prompts.
            continuations: what a model wrote after each of them.
            references: what follows them in their documents.
        """
