"""Compare how two models prefer the chosen answers of held-out pairs."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moray.config.schema import Preference
from moray.evaluate.bootstrap import compare
from moray.evaluate.likelihood import Scores
from moray.tasks.preference.loss import preference_losses


def compare_preferences(
    base: Scores, tuned: Scores, settings: Preference, samples: int, confidence: float
) -> dict[str, Any]:
    """Compute the figures of two models and their difference, with bootstrap intervals over pairs.

    The base is the reference, so its margins are 0.

    - `loss`: mean loss of the pairs, as in training.
    - `reward_margin`: mean of `beta` times the difference between the answers in how much the
      log-probability of the whole answer has changed from the base's, chosen minus rejected.
    - `reward_accuracy`: share of the pairs with a margin above 0; ties count half.
    - `chosen_loss`, `chosen_bits_per_byte`, `chosen_accuracy`: a language model's figures on the
      chosen answers; see `comparison.figures`.

    Args:
        base: scores of the base, for pieces that alternate between chosen and rejected.
        tuned: scores of the tuned model, for the same pieces.
        settings: the `preference` section.
        samples: number of resamples.
        confidence: coverage of the intervals.

    Returns:
        See `compare`.
    """
    before, after = (_sums(scores, base, settings) for scores in (base, tuned))
    return compare(before, after, _figures, samples, confidence)


def _sums(scores: Scores, base: Scores, settings: Preference) -> NDArray[np.float64]:
    """Shape (pairs, 8): one, loss, margin, win, and four sums over the chosen answer's tokens."""
    ratios = (base.nll - scores.nll).reshape(-1, 2)
    lengths = scores.tokens.reshape(-1, 2)
    losses = preference_losses(torch.from_numpy(ratios), torch.from_numpy(lengths), settings)
    margins = settings.beta * (ratios[:, 0] - ratios[:, 1])
    chosen = (scores.nll, scores.tokens, scores.bytes, scores.correct)
    return np.stack(
        [
            np.ones(len(ratios)),
            losses.numpy(),
            margins,
            (np.sign(margins) + 1) / 2,
            *(column[::2].astype(np.float64) for column in chosen),
        ],
        axis=1,
    )


def _figures(sums: NDArray[np.float64]) -> dict[str, float]:
    pairs, loss, margin, wins, nll, tokens, size, correct = sums.tolist()
    return {
        "loss": loss / pairs,
        "reward_margin": margin / pairs,
        "reward_accuracy": wins / pairs,
        "chosen_loss": nll / tokens,
        # A resample of few answers can consist of stop tokens only.
        "chosen_bits_per_byte": nll / math.log(2) / size if size else math.inf,
        "chosen_accuracy": correct / tokens,
    }
