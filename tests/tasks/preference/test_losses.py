"""The losses of pairs are TRL's: its formulas, written in NumPy from TRL 1.16."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from moray.config.schema.losses import Preference
from moray.tasks.preference.losses import margins, preference_losses
from moray.tasks.preference.proofs import loss_of

Array = NDArray[np.float64]
GENERATOR = np.random.default_rng(0)
LENGTHS = GENERATOR.integers(1, 40, (200, 2))
# Nats for each token of an answer.
ANSWERS = -LENGTHS * GENERATOR.gamma(2.0, 1.0, (200, 2))
REFERENCE = ANSWERS + GENERATOR.normal(0.0, 3.0, (200, 2))


def minus_log_sigmoid(values: Array) -> Array:
    return np.logaddexp(0, -values)


def by_trl(settings: Preference) -> Array:
    beta, smoothing = settings.beta, settings.label_smoothing
    scores = ANSWERS - REFERENCE if settings.has_reference else ANSWERS
    means = scores / LENGTHS
    whole, mean = scores[:, 0] - scores[:, 1], means[:, 0] - means[:, 1]
    nll = -(ANSWERS / LENGTHS)[:, 0]
    match settings.loss:
        case "dpo":
            losses = (1 - smoothing) * minus_log_sigmoid(beta * whole)
            losses += smoothing * minus_log_sigmoid(-beta * whole)
        case "hinge":
            losses = np.maximum(0, 1 - beta * whole)
        case "ipo":
            losses = (mean - 1 / (2 * beta)) ** 2
        case "robust":
            clean = (1 - smoothing) * minus_log_sigmoid(beta * whole)
            flipped = smoothing * minus_log_sigmoid(-beta * whole)
            losses = (clean - flipped) / (1 - 2 * smoothing)
        case "sigmoid_norm":
            losses = minus_log_sigmoid(beta * mean)
        case "cpo":
            losses = minus_log_sigmoid(beta * whole) + nll
        case "simpo":
            losses = minus_log_sigmoid(beta * (mean - settings.simpo_gamma / beta))
        case "orpo":
            log_odds = mean - np.diff(np.log1p(-np.exp(means[:, ::-1])), axis=1)[:, 0]
            losses = nll + beta * minus_log_sigmoid(log_odds)
    return losses + (settings.rpo_alpha or 0) * nll


@pytest.mark.parametrize(
    "settings",
    [
        Preference(),
        Preference(beta=0.3, label_smoothing=0.2),
        Preference(rpo_alpha=0.7),
        Preference(loss="hinge"),
        Preference(loss="ipo"),
        Preference(loss="robust", label_smoothing=0.1),
        Preference(loss="sigmoid_norm", beta=2.0),
        Preference(loss="cpo"),
        Preference(loss="simpo", beta=2.5, simpo_gamma=1.2),
        Preference(loss="orpo", beta=0.2),
    ],
    ids=str,
)
def test_losses_are_those_of_trl(settings: Preference) -> None:
    expected = by_trl(settings)
    answers, reference, lengths = map(torch.from_numpy, (ANSWERS, REFERENCE, LENGTHS))
    if not settings.has_reference:
        reference = torch.zeros_like(reference)
    found = preference_losses(answers, reference, lengths, settings)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-9)
    in_fp32 = preference_losses(answers.float(), reference.float(), lengths, settings)
    np.testing.assert_allclose(in_fp32.numpy(), expected, rtol=1e-4, atol=1e-5)
    one_by_one = [
        float(loss_of(list(now), list(before), counts, settings))
        for now, before, counts in zip(answers, reference, LENGTHS.tolist(), strict=True)
    ]
    np.testing.assert_allclose(one_by_one, expected, rtol=1e-6, atol=1e-9)


def test_an_answer_that_is_certain_has_a_finite_loss_and_gradient() -> None:
    answers = torch.tensor([[0.0, -3.0], [-3.0, 0.0]], requires_grad=True)
    lengths = torch.ones(2, 2, dtype=torch.int64)
    losses = preference_losses(answers, torch.zeros(2, 2), lengths, Preference(loss="orpo"))
    (gradient,) = torch.autograd.grad(losses.sum(), answers)
    assert losses.isfinite().all()
    assert gradient.isfinite().all()


def test_margins_are_of_whole_answers_with_a_reference_and_else_those_of_the_loss() -> None:
    answers, reference = torch.tensor([[-4.0, -9.0]]), torch.tensor([[-5.0, -6.0]])
    lengths, nothing = torch.tensor([[2, 3]]), torch.zeros(1, 2)
    expected = {"dpo": 2.0, "ipo": 2.0, "sigmoid_norm": 2.0, "cpo": 2.5, "simpo": 0.5, "orpo": 0.5}
    for loss, value in expected.items():
        settings = Preference.model_validate({"loss": loss, "beta": 0.5})
        before = reference if settings.has_reference else nothing
        assert margins(answers, before, lengths, settings).tolist() == [value]
