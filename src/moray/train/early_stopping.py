"""What follows from the validation losses so far: the best step, and whether to go on."""

import math
from dataclasses import dataclass


@dataclass
class Evaluations:
    """The validation losses of a run, in the order of their steps.

    Attributes:
        patience: evaluations in a row without a lower loss that end the run; None for never.
        losses: nats a token, by step.
    """

    patience: int | None
    losses: dict[int, float]

    @property
    def best(self) -> int | None:
        """The step of the lowest loss, the first of equal ones; None before any."""
        return min(self.losses, key=self._rank, default=None)

    def _rank(self, step: int) -> float:
        loss = self.losses[step]
        return math.inf if math.isnan(loss) else loss

    @property
    def stop(self) -> bool:
        """Whether the run ends here."""
        if self.patience is None or self.best is None:
            return False
        return list(self.losses).index(self.best) + self.patience < len(self.losses)
