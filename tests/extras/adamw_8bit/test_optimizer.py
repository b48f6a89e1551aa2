"""AdamW in 8 bits: its blocks, its step, and runs that are killed, moved and adapted."""

import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from checkpoints import check_resumption, last_tensors
from engines import check_two_workers
from fleet import losses
from forks import run_forks
from jobs import Make, job_maker, without_later
from present import needs
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from moray.config.schema.train import Adapter, Train
from moray.extras.adamw_8bit.optimizer import Blocks, state_of
from moray.train.loop import train
from moray.train.optimizer import Optimizer, as_saved
from moray.workers.entry import Worker

KINDS = ("adamw_8bit", "adamw")
BLOCK = 256
# Rounding may choose the farther of two levels that are about as near; a share of a block's scale.
ROUNDING = 1e-6


def spread(*shape: int, powers: tuple[int, int]) -> Tensor:
    """Normal numbers, each row times a power of two."""
    low, high = powers
    scale = torch.exp2(torch.randint(low, high, (shape[0], *[1] * (len(shape) - 1))).float())
    return torch.randn(shape) * scale


def values(kind: str) -> Tensor:
    torch.manual_seed(0)
    found = {
        "normal": torch.randn(2000, BLOCK),
        "of many scales": spread(2000, BLOCK, powers=(-90, 90)),
        "of many scales in a block": torch.exp(10 * torch.randn(2000, BLOCK)),
        "negative": -torch.rand(2000, BLOCK),
        "zeros": torch.zeros(4, BLOCK),
        "denormal": spread(2000, BLOCK, powers=(-149, -120)),
        "huge": torch.rand(2000, BLOCK).mul(2).sub(1) * torch.finfo(torch.float32).max,
        "not whole": torch.randn(1, 100 * BLOCK + 17),
    }[kind]
    if kind == "of many scales":
        found[::3, ::2] = 0.0
    return found.flatten()


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(
    "kind",
    [
        "normal",
        "of many scales",
        "of many scales in a block",
        "negative",
        "zeros",
        "denormal",
        "huge",
        "not whole",
    ],
)
def test_blocks_are_restored_from_their_values(kind: str, signed: bool) -> None:
    given = values(kind) if signed else values(kind).abs()
    made, by_kernel, restored = (Blocks(given, signed) for _ in range(3))
    made.quantize(given)
    # It chooses other levels, not always the nearest.
    codes, scales = torch.ops.bitsandbytes.quantize_blockwise(given, made.levels, BLOCK)
    by_kernel.codes.copy_(codes)
    by_kernel.scales.copy_(scales)
    for blocks in (made, by_kernel):
        restored.quantize(blocks.dequantized())
        assert torch.equal(restored.dequantized(), blocks.dequantized())
        assert torch.equal(restored.scales, blocks.scales)
        assert torch.equal(restored.scales, given_scales(given))


def given_scales(given: Tensor) -> Tensor:
    blocks = nn.functional.pad(given, (0, -len(given) % BLOCK)).view(-1, BLOCK)
    return blocks.abs().amax(1)


def by_hand(values: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest levels of values, and the scales of their blocks, one for each value."""
    blocks = np.pad(values, (0, -len(values) % BLOCK)).reshape(-1, BLOCK)
    scales = np.repeat(np.abs(blocks).max(1), BLOCK)[: len(values)]
    shares = np.divide(values, scales, out=np.zeros_like(values), where=scales > 0)
    nearest = levels[np.abs(shares[:, None] - levels).argmin(1)]
    return nearest * scales, scales


def test_values_are_set_to_the_nearest_levels() -> None:
    given = values("not whole")
    blocks = Blocks(given, signed=True)
    blocks.quantize(given)
    expected, scales = by_hand(in_numpy(given), in_numpy(blocks.levels))
    assert np.abs(in_numpy(blocks.dequantized()) - expected).max() <= 1e-6 * scales.max()


@pytest.mark.parametrize("signed", [True, False])
def test_shares_on_both_sides_of_each_border_get_the_level_on_their_side(signed: bool) -> None:
    levels = Blocks(torch.zeros(1), signed).levels
    borders = (levels[1:] + levels[:-1]) / 2
    above, below = (torch.nextafter(borders, torch.tensor(end)) for end in (2.0, -2.0))
    # A scale of one leaves shares as they are.
    given = torch.stack([torch.ones(255), levels[1:], borders, above, below], 1).flatten()
    blocks = Blocks(given, signed)
    blocks.quantize(given)
    assert torch.equal(blocks.scales, torch.ones_like(blocks.scales))
    assert torch.equal(blocks.codes.int(), torch.bucketize(given, borders, out_int32=True))


def in_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy().ravel()


class Two(nn.Module):
    """A tensor in 8 bits, whose last block isn't whole, and one that is too small for that."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.randn(70, 63))
        self.small = nn.Parameter(torch.randn(9))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_step_dequantizes_steps_in_fp32_and_quantizes(device: str) -> None:
    torch.manual_seed(0)
    model, plain = Two().to(device), Two().to(device)
    plain.load_state_dict(model.state_dict())
    keys: dict[str, Any] = {"weight_decay": 0.1, "max_grad_norm": 1e9}
    optimizer, reference = (Optimizer(Train(optimizer=kind, **keys)) for kind in KINDS)
    made, usual = optimizer.make(model), reference.make(plain)
    optimizer.make_state(made, model.parameters())
    reference.make_state(usual, plain.parameters())
    state = made.state[model.large]
    for step in range(1, 6):
        rate = 1e-3 / step
        gradient = spread(70, 63, powers=(-12, 3))
        weights = in_numpy(model.large)
        mean, square = (in_numpy(state[key].dequantized()) for key in optimizer.moments)
        small = torch.randn(9, device=device)
        model.large.grad, model.small.grad = gradient.to(device), small
        plain.small.grad = small.clone()
        optimizer.step(model, made, rate)
        reference.step(plain, usual, rate)

        g = in_numpy(gradient)
        mean, square = 0.9 * mean + 0.1 * g, 0.95 * square + 0.05 * g**2
        unbiased = np.sqrt(square / (1 - 0.95**step)) + 1e-8
        change, decay = rate * mean / (1 - 0.9**step) / unbiased, 1 - rate * 0.1
        # The kernel decays what it has updated, which shows where the square was rounded to zero.
        weights = weights * decay - change if device == "cpu" else (weights - change) * decay
        np.testing.assert_allclose(in_numpy(model.large), weights, rtol=1e-6, atol=1e-6)
        for key, exact in (("exp_avg", mean), ("exp_avg_sq", square)):
            found = state[key].dequantized()
            nearest, scales = by_hand(exact, in_numpy(state[key].levels))
            error = np.abs(in_numpy(found) - exact)
            assert (error <= np.abs(nearest - exact) + ROUNDING * scales).all(), (key, step)
            restored = Blocks(model.large, signed=key == "exp_avg")
            restored.quantize(found)
            assert torch.equal(restored.dequantized(), found)
        assert state["step"].item() == step
        # A small tensor's moments are in fp32.
        assert torch.equal(model.small, plain.small)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_moments_take_a_byte_each_and_their_scales_a_64th_of_it() -> None:
    model, optimizer = nn.Linear(64, 128, bias=False), Optimizer(Train(optimizer="adamw_8bit"))
    made = optimizer.make(model)
    optimizer.make_state(made, model.parameters())
    state = made.state[model.weight]
    blocks = [state[key] for key in optimizer.moments]
    elements = model.weight.numel()
    assert sum(each.codes.nbytes for each in blocks) == optimizer.state_bytes(elements, elements)
    assert sum(each.scales.nbytes for each in blocks) == 2 * elements / 64
    saved = (each.dequantized() for each in blocks)
    assert sum(each.nbytes for each in saved) == optimizer.saved_bytes(elements, elements)


def test_tensors_that_are_small_or_too_large_for_the_kernel_have_no_blocks() -> None:
    made = Optimizer(Train(optimizer="adamw_8bit")).make(nn.Linear(1, 1))
    assert state_of(made, torch.zeros(4095)) == {}
    assert state_of(made, torch.zeros(4096)).keys() == {"exp_avg", "exp_avg_sq", "step"}
    assert state_of(made, torch.empty(2**31, device="meta")) == {}


def fill(saved: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    for name, value in state.items():
        value.copy_(saved[name])


def is_equal(first: Tensor, second: Tensor) -> bool:
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in (first, second)]
    return torch.equal(*whole)


def step_sharded(rank: int, world_size: int, store: str) -> None:
    """Hold a step of a tensor, of which one worker has nothing, to that of the whole one."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    whole = nn.Linear(5000, 1, bias=False)
    gradient = torch.randn_like(whole.weight)
    sharded = nn.Linear(5000, 1, bias=False)
    mesh = init_device_mesh("cpu", (world_size,))
    sharded.weight = nn.Parameter(distribute_tensor(whole.weight.detach(), mesh, [Shard(0)]))
    saved = []
    for model, given in (
        (whole, gradient),
        (sharded, distribute_tensor(gradient, mesh, [Shard(0)])),
    ):
        optimizer = Optimizer(Train(optimizer="adamw_8bit", max_grad_norm=1e9))
        made = optimizer.make(model)
        optimizer.make_state(made, model.parameters())
        model.weight.grad = given
        optimizer.step(model, made, 0.1)
        state = optimizer.training_state(model, made)
        saved.append({name: as_saved(value) for name, value in state.items()})
        optimizer.restore(model, made, partial(fill, saved[-1]))
        again = optimizer.training_state(model, made)
        assert all(is_equal(as_saved(again[name]), value) for name, value in saved[-1].items())
    assert isinstance(sharded.weight, DTensor)
    assert not rank or not sharded.weight.to_local().numel()
    assert all(is_equal(value, saved[0][name]) for name, value in saved[1].items())
    dist.destroy_process_group()


@pytest.mark.release
def test_a_worker_may_have_nothing_of_a_tensor(tmp_path: Path) -> None:
    run_forks(step_sharded, (2, str(tmp_path / "store")), 2)


@pytest.fixture
def make_8bit(wide: Path, tmp_path: Path) -> Make:
    """Makes jobs in 8 bits, unless they say otherwise."""
    make = job_maker(wide, tmp_path)

    def make_job(work: str, adapter: Adapter | None = None, **settings: Any) -> Any:
        return make(work, adapter, **{"optimizer": "adamw_8bit", **settings})

    return make_job


LORA = Adapter(rank=48)
QLORA = Adapter(rank=48, quantize_base="4bit")


@pytest.mark.long
@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(None, id="whole"),
        pytest.param(LORA, id="lora"),
        pytest.param(QLORA, id="qlora", marks=[pytest.mark.release, needs("quantized_base")]),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(
    adapter: Adapter | None, make_8bit: Make, alone: Worker
) -> None:
    undisturbed = check_resumption(make_8bit, alone, 4, adapter=adapter)
    usual = make_8bit("usual", adapter, optimizer="adamw")
    train(usual, alone)
    found, expected = last_tensors(undisturbed), last_tensors(usual)
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in expected.items()
    }
    assert losses(undisturbed) == pytest.approx(losses(usual), rel=0.01)
    assert losses(undisturbed) != losses(usual)


@pytest.mark.release
def test_two_workers_have_the_losses_of_one_and_resume_to_the_same_bits(
    make_8bit: Make, alone: Worker, tmp_path: Path
) -> None:
    check_two_workers(make_8bit, alone, tmp_path, rel=2e-3, adapters=(None, LORA))


def test_a_checkpoint_has_no_second_copy_of_the_moments_in_fp32(
    make_8bit: Make, alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In main memory, each is dequantized when its turn to be copied comes."""
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []
    dequantized = Blocks.dequantized

    def counted(blocks: Blocks) -> Tensor:
        value = dequantized(blocks)
        made.append(weakref.ref(value))
        alive.append(sum(one() is not None for one in made))
        return value

    monkeypatch.setattr(Blocks, "dequantized", counted)
    train(make_8bit("work"), alone)
    assert len(alive) > 20
    assert max(alive) <= 2


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [KINDS, KINDS[::-1]])
def test_a_run_goes_on_with_the_moments_of_the_other_optimizer(
    before: str, after: str, make_8bit: Make, alone: Worker
) -> None:
    """Without them, the first steps of AdamW are far too large."""
    first = make_8bit("first", optimizer=before, save_total_limit=10)
    train(first, alone)
    second = without_later(make_8bit, first, "second", 4, optimizer=after)
    assert train(second, alone)["resumed_from"] == 4
    assert losses(second)[-4:] == pytest.approx(losses(first)[-4:], rel=5e-3)
