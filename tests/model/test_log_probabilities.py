"""Log-probabilities of an output layer and their gradients, held against autograd in fp64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moray.model.log_probabilities import linear_log_probabilities

WIDTH, VOCABULARY = 8, 23


# At most 1,024 rows are dealt with at a time.
@pytest.mark.parametrize("rows", [0, 1, 1024, 1025, 2560])
def test_log_probabilities_and_gradients_are_those_of_autograd(rows: int) -> None:
    torch.manual_seed(rows)
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    targets, scales = torch.randint(VOCABULARY, (rows,)), torch.randn(rows)
    found = linear_log_probabilities(hidden, weight, targets)
    assert (found.shape, found.dtype) == ((rows,), torch.float32)
    torch.autograd.backward((found * scales).sum())
    states, matrix = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    logs = F.linear(states, matrix).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(found.double(), logs, rtol=1e-5, atol=1e-5)
    torch.autograd.backward((logs * scales).sum())
    for tensor, expected in ((hidden, states), (weight, matrix)):
        assert tensor.grad is not None
        assert expected.grad is not None
        torch.testing.assert_close(tensor.grad.double(), expected.grad, rtol=1e-4, atol=1e-4)


def test_logits_are_not_kept_for_the_backward_pass() -> None:
    kept = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.shape)
        return tensor

    hidden, weight = torch.randn(2048, WIDTH, requires_grad=True), torch.randn(VOCABULARY, WIDTH)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        linear_log_probabilities(hidden, weight, torch.zeros(2048, dtype=torch.long))
    assert all(VOCABULARY not in shape or WIDTH in shape for shape in kept)
