"""The loss of good and bad answers is TRL's: its formula, written in NumPy from TRL 1.16."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from moray.config.schema.losses import Kto
from moray.tasks.kto.losses import kl_of, kto_losses
from moray.tasks.kto.proofs import loss_at_start, losses_of

Array = NDArray[np.float64]
GENERATOR = np.random.default_rng(0)
# Log-probabilities of answers, and those of the same prompts with other answers, nats.
ANSWERS, OTHERS = -GENERATOR.gamma(20.0, 2.0, (2, 200))
REFERENCE = ANSWERS + GENERATOR.normal(0.0, 5.0, 200)
LABELS = GENERATOR.random(200) < 0.3
SETTINGS = [Kto(), Kto(beta=0.4, desirable_weight=1.5, undesirable_weight=0.5)]


def sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def by_trl(apart: Array, settings: Kto) -> tuple[Array, Array]:
    """The losses of `KTOTrainer` with `loss_type: kto`, and their derivatives by `ANSWERS`."""
    kl = np.maximum(apart.mean(), 0)
    ratios, beta = ANSWERS - REFERENCE, settings.beta
    chosen = 1 - sigmoid(beta * (ratios - kl))
    rejected = 1 - sigmoid(beta * (kl - ratios))
    weights = np.where(LABELS, settings.desirable_weight, settings.undesirable_weight)
    slopes = np.where(LABELS, -beta, beta) * chosen * rejected
    return weights * np.where(LABELS, chosen, rejected), weights * slopes


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("shift", [-3.0, 4.0])
def test_losses_and_gradients_are_those_of_trl(shift: float, settings: Kto) -> None:
    apart = GENERATOR.normal(shift, 2.0, 200)
    expected, slopes = by_trl(apart, settings)
    answers = torch.from_numpy(ANSWERS).requires_grad_()
    ratios, labels = answers - torch.from_numpy(REFERENCE), torch.from_numpy(LABELS)
    kl = kl_of(torch.tensor(apart.sum()), len(apart))
    assert (float(kl) > 0) == (shift > 0)
    losses = kto_losses(ratios, labels, kl, settings)
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-12)
    (gradient,) = torch.autograd.grad(losses.sum(), answers)
    np.testing.assert_allclose(gradient.numpy(), slopes, rtol=1e-10)
    # What a run is compared with before its first step, and after its last.
    plain = losses_of(
        list(ratios.detach()), LABELS.tolist(), list(torch.from_numpy(apart)), settings
    )
    np.testing.assert_allclose([float(loss) for loss in plain], expected, rtol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_at_the_start_losses_are_half_of_the_weights(settings: Kto) -> None:
    zeros, labels = torch.zeros(200, dtype=torch.float64), torch.from_numpy(LABELS)
    losses = kto_losses(zeros, labels, kl_of(torch.zeros(()), 200), settings)
    weights = np.where(LABELS, settings.desirable_weight, settings.undesirable_weight)
    np.testing.assert_allclose(losses.numpy(), weights / 2)
    assert loss_at_start(LABELS.tolist(), settings) == pytest.approx(weights.mean() / 2)


def test_in_fp32_a_far_answer_has_a_gradient() -> None:
    ratios = torch.tensor([-300.0, 300.0], requires_grad=True)
    losses = kto_losses(ratios, torch.tensor([False, True]), torch.zeros(()), Kto())
    (gradient,) = torch.autograd.grad(losses.sum(), ratios)
    assert (gradient != 0).all()
