"""The learning rate, as a pure function of the step."""

import math

from moray.config.schema import Train


def learning_rate(settings: Train, step: int, num_steps: int) -> float:
    """The rate of a step: linear warm-up, then the course that `lr_scheduler_type` names.

    Source of the cosine: Loshchilov and Hutter, "SGDR", 2017, without restarts.

    Args:
        settings: the `train` section.
        step: counts from 0; the first step's rate is above zero.
        num_steps: of the whole run.
    """
    warmup = round(settings.warmup_ratio * num_steps)
    if step < warmup:
        return settings.learning_rate * (step + 1) / (warmup + 1)
    if settings.lr_scheduler_type == "constant":
        return settings.learning_rate
    progress = (step - warmup) / max(1, num_steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    lowest = settings.min_lr_ratio
    return settings.learning_rate * (lowest + (1 - lowest) * cosine)
