"""The learning rate, as a pure function of the step."""

import math

from moray.config.schema import Train


def learning_rate(settings: Train, step: int, num_steps: int) -> float:
    """The learning rate of a step: linear warm-up, then the schedule of `lr_scheduler_type`.

    Sources: for cosine, Loshchilov and Hutter, "SGDR", 2017, without restarts; for `wsd`
    (warm-up, stable, decay), Hu et al., "MiniCPM", 2024, with a linear decay.

    Args:
        settings: the `train` section.
        step: starts at 0; the first step's rate is above zero.
        num_steps: number of steps in the whole run.
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
