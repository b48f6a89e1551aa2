from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moray.tasks.language import cross_entropy as loss_module
from moray.tasks.language.cross_entropy import (
    linear_cross_entropy,
    linear_log_probabilities,
    linear_scores,
    softmax_loss,
)

WIDTH, VOCABULARY = 8, 23

Layer = tuple[Tensor, Tensor, Tensor]


def layer(rows: int) -> Layer:
    """States, weights that make some targets likely, and targets."""
    torch.manual_seed(rows)
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    return hidden, weight, torch.randint(VOCABULARY, (rows,))


def by_autograd(hidden: Tensor, weight: Tensor, targets: Tensor, counted: int) -> Layer:
    """Loss and gradients of states and weights, all in fp64."""
    states = hidden.detach().double().requires_grad_()
    matrix = weight.detach().double().requires_grad_()
    logits = F.linear(states[:counted], matrix)
    loss = F.cross_entropy(logits, targets[:counted], reduction="sum")
    by_hidden, by_weight = torch.autograd.grad(loss, (states, matrix))
    return loss, by_hidden, by_weight


def gradient_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def assert_near(got: Tensor, expected: Tensor, of_largest: float) -> None:
    """All values differ by no more than a share of the largest one."""
    bound = of_largest * expected.abs().max().item()
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=bound)


# At most 1,024 rows are dealt with at a time.
CASES = [(1, 1), (256, 200), (1024, 1024), (1280, 1025), (1280, 1024), (2560, 2400), (2560, 300)]


@pytest.mark.parametrize(("rows", "counted"), CASES)
def test_loss_and_gradients_are_those_of_autograd(rows: int, counted: int) -> None:
    hidden, weight, targets = layer(rows)
    expected = by_autograd(hidden, weight, targets, counted)
    loss = linear_cross_entropy(hidden, weight, targets, counted)
    assert (loss.shape, loss.dtype) == ((), torch.float32)
    torch.autograd.backward(loss)
    for got, value in zip((loss, gradient_of(hidden), gradient_of(weight)), expected, strict=True):
        assert_near(got, value, 1e-6)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_an_output_layer_that_is_filled_up_changes_nothing(
    kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where rows of logits begin at multiples of 128 bytes."""

    def computed() -> list[Tensor]:
        hidden, weight, targets = layer(1500)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            loss = linear_cross_entropy(hidden, weight, targets, 1400)
        torch.autograd.backward(loss)
        scores = linear_scores(hidden.detach(), weight.detach(), targets)
        return [loss.detach(), gradient_of(hidden), gradient_of(weight), *scores]

    expected = computed()
    monkeypatch.setattr(loss_module, "_alignment", lambda device: 64)
    for got, right in zip(computed(), expected, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)


def test_scores_are_losses_and_whether_the_target_is_the_likeliest() -> None:
    hidden, weight, targets = layer(1500)
    losses, hits = linear_scores(hidden.detach(), weight.detach(), targets)
    logits = hidden.detach().double() @ weight.detach().double().T
    assert_near(losses, F.cross_entropy(logits, targets, reduction="none"), 1e-6)
    assert torch.equal(hits, logits.argmax(-1) == targets)
    assert hits.any()


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [23, 64, 5003])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [256, 16_384])
def test_on_a_gpu_an_aligned_output_layer_gives_the_same(
    vocabulary: int, kind: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of logits are filled up there, and gradients of the weight added in fp32."""
    monkeypatch.setattr(loss_module, "_MOST_GPU_ROWS", chunk)
    torch.manual_seed(vocabulary)
    hidden, weight = torch.randn(1280, 64), torch.randn(vocabulary, 64) / 8
    targets = torch.randint(vocabulary, (1280,))
    expected = by_autograd(hidden.to(kind), weight.to(kind), targets, 1100)
    states, matrix = (tensor.cuda().requires_grad_() for tensor in (hidden, weight))
    with torch.autocast("cuda", torch.bfloat16, enabled=kind == torch.bfloat16):
        got = linear_cross_entropy(states, matrix, targets.cuda(), 1100)
    torch.autograd.backward(got)
    near = 1e-5 if kind == torch.float32 else 0.01
    found = got, gradient_of(states)[:1100], gradient_of(matrix)
    whole = expected[0], expected[1][:1100], expected[2]
    for value, right in zip(found, whole, strict=True):
        assert_near(value.cpu(), right, near)
    losses, hits = linear_scores(hidden.cuda(), weight.cuda(), targets.cuda())
    logits = hidden.double() @ weight.double().T
    assert_near(losses.cpu(), F.cross_entropy(logits, targets, reduction="none"), 1e-5)
    assert torch.equal(hits.cpu(), logits.argmax(-1) == targets)


@pytest.mark.parametrize(("rows", "counted"), [(256, 200), (2560, 2100), (2560, 0)])
def test_rows_of_padding_do_not_count_whatever_they_hold(rows: int, counted: int) -> None:
    found = []
    for filler in (0.0, 50.0):
        hidden, weight, targets = layer(rows)
        with torch.no_grad():
            hidden[counted:] = filler
            targets[counted:] = int(filler) % VOCABULARY
        loss = linear_cross_entropy(hidden, weight, targets, counted)
        torch.autograd.backward(loss)
        assert not gradient_of(hidden)[counted:].any()
        found.append((loss, gradient_of(hidden), gradient_of(weight)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert found[0][0].isfinite()
    assert bool(found[0][0]) is (counted > 0)


def test_gradients_are_scaled_by_what_becomes_of_the_loss() -> None:
    hidden, weight, targets = layer(300)
    _, by_hidden, by_weight = by_autograd(hidden, weight, targets, 300)
    loss = linear_cross_entropy(hidden, weight, targets, 300)
    torch.autograd.backward(loss / 300 * 2)
    assert_near(gradient_of(hidden), by_hidden / 150, 1e-6)
    assert_near(gradient_of(weight), by_weight / 150, 1e-6)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen_gets_no_gradient_and_the_other_gets_its_own(frozen: str) -> None:
    hidden, weight, targets = layer(1500)
    loss, by_hidden, by_weight = by_autograd(hidden, weight, targets, 1400)
    still, moving, expected = (
        (hidden, weight, by_weight) if frozen == "hidden" else (weight, hidden, by_hidden)
    )
    still.requires_grad_(False)
    got = linear_cross_entropy(hidden, weight, targets, 1400)
    assert_near(got, loss, 1e-6)
    torch.autograd.backward(got)
    assert still.grad is None
    assert_near(gradient_of(moving), expected, 1e-6)


def test_without_gradients_the_loss_is_the_same() -> None:
    hidden, weight, targets = layer(1500)
    expected = linear_cross_entropy(hidden, weight, targets, 1400)
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, targets, 1400)
    assert not loss.requires_grad
    assert torch.equal(loss, expected)


@pytest.mark.parametrize("large", [1e3, 1e4])
def test_large_logits_do_not_overflow(large: float) -> None:
    hidden, weight, targets = layer(50)
    with torch.no_grad():
        hidden *= large
    expected = by_autograd(hidden, weight, targets, 50)
    loss = linear_cross_entropy(hidden, weight, targets, 50)
    torch.autograd.backward(loss)
    assert_near(loss, expected[0], 1e-5)
    assert_near(gradient_of(weight), expected[2], 1e-4)


def test_under_autocast_it_is_near_and_gradients_have_the_type_of_the_weights() -> None:
    hidden, weight, targets = layer(2560)
    loss, by_hidden, by_weight = by_autograd(hidden, weight, targets, 2400)
    with torch.autocast("cpu", torch.bfloat16):
        got = linear_cross_entropy(hidden, weight, targets, 2400)
    assert got.dtype == torch.float32
    torch.autograd.backward(got)
    assert gradient_of(hidden).dtype == gradient_of(weight).dtype == torch.float32
    assert_near(got, loss, 1e-3)
    assert_near(gradient_of(hidden), by_hidden, 0.02)
    assert_near(gradient_of(weight), by_weight, 0.02)


def test_states_that_autocast_made_get_gradients_of_their_own_type() -> None:
    hidden, weight, targets = layer(300)
    states = hidden.detach().bfloat16().requires_grad_()
    _, by_hidden, _ = by_autograd(hidden, weight, targets, 300)
    with torch.autocast("cpu", torch.bfloat16):
        torch.autograd.backward(linear_cross_entropy(states, weight, targets, 300))
    assert gradient_of(states).dtype == torch.bfloat16
    assert_near(gradient_of(states), by_hidden, 0.02)


def test_logits_are_never_all_there_at_once() -> None:
    hidden, weight, targets = layer(2560)
    sizes: list[int] = []

    def seen(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(logits))
        return softmax_loss(logits, wanted)

    linear_cross_entropy(hidden, weight, targets, 2400, seen)
    assert max(sizes) <= 1024
    assert sum(sizes) == 2560


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_softmax_gives_losses_in_fp32_and_probabilities_in_the_type_of_the_logits(
    kind: torch.dtype,
) -> None:
    torch.manual_seed(0)
    logits, targets = (10 * torch.randn(40, VOCABULARY)).to(kind), torch.arange(40) % VOCABULARY
    losses, probabilities = softmax_loss(logits, targets)
    assert (losses.dtype, probabilities.dtype) == (torch.float32, kind)
    expected = logits.double().softmax(-1)
    picked = expected[torch.arange(40), targets]
    torch.testing.assert_close(losses.double(), -picked.log(), rtol=1e-5, atol=1e-5)
    tolerance: dict[str, Any] = {"rtol": 1e-5 if kind == torch.float32 else 1e-2, "atol": 1e-6}
    torch.testing.assert_close(probabilities.double(), expected, **tolerance)


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
