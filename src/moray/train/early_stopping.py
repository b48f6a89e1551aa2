"""The best step so far by validation loss, and whether to stop early."""

import math
from dataclasses import dataclass


@dataclass
class Evaluations:
    """The validation losses of a run, in the order of their steps.

    Attributes:
        patience: stop after this many evaluations in a row without a lower loss; None for never.
        losses: in nats per token, by step.
    """

    patience: int | None
    losses: dict[int, float]

    @property
    def best(self) -> int | None:
        """The step with the lowest loss, the first of equal ones; None before any evaluation."""
        return min(self.losses, key=self._rank, default=None)

    def _rank(self, step: int) -> float:
        loss = self.losses[step]
        return math.inf if math.isnan(loss) else loss

    @property
    def stop(self) -> bool:
        """Whether the run stops early."""
        if self.patience is None or self.best is None:
            return False
        return list(self.losses).index(self.best) + self.patience < len(self.losses)
