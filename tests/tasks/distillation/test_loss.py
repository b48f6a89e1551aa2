"""The loss with a teacher is that of its formula, in NumPy and over the whole vocabulary."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, rel_entr, softmax
from torch import Tensor

from moray.config.schema.losses import Distillation
from moray.tasks.distillation.loss import distillation_losses

TOKENS, VOCABULARY = 50, 40
GENERATOR = np.random.default_rng(0)
STUDENT, TEACHER = GENERATOR.normal(0, 3, (2, TOKENS, VOCABULARY))
TARGETS = GENERATOR.integers(0, VOCABULARY, TOKENS)


def settings_of(**keys: float) -> Distillation:
    return Distillation.model_validate({"teacher": "large", **keys})


def likeliest(top_k: int, temperature: float) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(torch.tensor(TEACHER) / temperature, -1)
    values, tokens = logs.topk(top_k, -1)
    return tokens, values


def by_hand(alpha: float, temperature: float, top_k: int) -> NDArray[np.float64]:
    """The losses with all but the teacher's likeliest tokens as one class."""
    student, teacher = softmax(STUDENT / temperature, 1), softmax(TEACHER / temperature, 1)
    classes = []
    order = np.argsort(-teacher, 1)[:, :top_k]
    for one in (student, teacher):
        chosen = np.take_along_axis(one, order, 1)
        classes.append(np.concatenate([chosen, np.abs(1 - chosen.sum(1, keepdims=True))], 1))
    divergence = rel_entr(classes[1], np.maximum(classes[0], 1e-300)).sum(1)
    own = -log_softmax(STUDENT, 1)[np.arange(TOKENS), TARGETS]
    losses: NDArray[np.float64] = (1 - alpha) * own + alpha * temperature**2 * divergence
    return losses


@pytest.mark.parametrize("top_k", [1, 7, VOCABULARY - 1, VOCABULARY])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_losses_are_those_of_the_formula(alpha: float, temperature: float, top_k: int) -> None:
    settings = settings_of(alpha=alpha, temperature=temperature)
    losses = distillation_losses(
        torch.tensor(STUDENT),
        torch.tensor(TARGETS),
        *likeliest(top_k, temperature),
        settings,
    )
    np.testing.assert_allclose(losses, by_hand(alpha, temperature, top_k), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_with_all_tokens_gradients_are_those_of_the_whole_divergence(temperature: float) -> None:
    logits = torch.tensor(STUDENT, dtype=torch.float32, requires_grad=True)
    settings = settings_of(alpha=1.0, temperature=temperature)
    stored = likeliest(VOCABULARY, temperature)
    losses = distillation_losses(logits, torch.tensor(TARGETS), *stored, settings)
    torch.autograd.backward(losses.sum())
    # Hinton et al., 2015, equation 2, for a loss that is multiplied by the squared temperature.
    expected = temperature * (softmax(STUDENT / temperature, 1) - softmax(TEACHER / temperature, 1))
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad, expected, atol=1e-5)


def test_sixteen_bits_change_gradients_by_less_than_a_thousandth() -> None:
    tokens, logs = likeliest(VOCABULARY, 1.0)
    gradients = []
    for stored in (logs, logs.half().float()):
        logits = torch.tensor(STUDENT, dtype=torch.float32, requires_grad=True)
        losses = distillation_losses(
            logits, torch.tensor(TARGETS), tokens, stored, settings_of(alpha=1.0)
        )
        torch.autograd.backward(losses.sum())
        assert logits.grad is not None
        gradients.append(logits.grad)
    exact, rounded = gradients
    assert (rounded - exact).norm() < 1e-3 * exact.norm()


def test_rounded_probabilities_that_add_up_to_more_than_one_have_a_gradient() -> None:
    logits = torch.zeros(1, 4, requires_grad=True)
    tokens, logs = torch.tensor([[0, 1]]), torch.tensor([[0.6, 0.41]]).log()
    losses = distillation_losses(logits, torch.tensor([3]), tokens, logs, settings_of(alpha=1.0))
    torch.autograd.backward(losses.sum())
    assert logits.grad is not None
    expected = torch.tensor([[0.25 - 0.6 / 1.01, 0.25 - 0.41 / 1.01, 0.25, 0.25]])
    torch.testing.assert_close(logits.grad, expected)
