"""The learning rate, as a pure function of the step; and whether a run stops early."""

import math
from dataclasses import dataclass

from moray.config.schema.train import Train


def learning_rate(settings: Train, step: int, num_steps: int) -> float:
    """The learning rate of a step, counted from 0: warm-up, then the `lr_scheduler_type`.

    The first step's rate is above zero. Sources: for cosine, Loshchilov and Hutter, "SGDR", 2017,
    without restarts; for `wsd` (warm-up, stable, decay), Hu et al., "MiniCPM", 2024, with a linear
    decay.
    """
    warmup = round(settings.warmup_ratio * num_steps)
    if step < warmup:
        return settings.learning_rate * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, num_steps - warmup)
    shares = {
        "constant": 1.0,
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        "linear": 1 - progress,
        "wsd": min(1.0, (num_steps - step) / (settings.decay_ratio * num_steps)),
    }
    lowest = 1.0 if settings.lr_scheduler_type == "constant" else settings.min_lr_ratio
    share = shares[settings.lr_scheduler_type]
    return settings.learning_rate * (lowest + (1 - lowest) * share)


def never_stops_early(settings: Train, num_steps: int) -> str | None:
    """What is to say about a patience that is too long for the steps of a run; else None."""
    patience = settings.early_stopping_patience
    before_end = (num_steps - 1) // settings.eval_steps
    # The first evaluation can be the best.
    if patience is None or before_end > patience:
        return None
    verb = "is" if before_end == 1 else "are"
    possible = f"lower it to {before_end - 1} or less, or " if before_end > 1 else ""
    return (
        f"got {patience}, which can't stop the run: that needs {patience + 1} evaluations, and "
        f"there {verb} {before_end:,} before the last step, {num_steps:,}; {possible}lower "
        "eval_steps"
    )


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
        if self.patience is None or self.best is None:
            return False
        return list(self.losses).index(self.best) + self.patience < len(self.losses)
