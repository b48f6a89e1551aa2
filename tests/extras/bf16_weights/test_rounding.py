"""Weights in bf16: how steps are rounded, and runs that are killed, moved and continued."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checkpoints import check_resumption, check_same_bits
from engines import check_two_workers
from fleet import losses
from forks import run_forks
from jobs import Make, job_maker, without_later
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from transformers import ResNetConfig, ResNetForImageClassification

from moray.config import extras
from moray.config.schema.train import Train
from moray.errors import UserError
from moray.extras.bf16_weights import rounding
from moray.extras.bf16_weights.rounding import check_weights, round_stochastically
from moray.model.load import load_model
from moray.storage.interface import folder_of, path_of
from moray.train.loop import train
from moray.train.memory import footprint
from moray.train.optimizer import Optimizer, is_state
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

BF16 = torch.bfloat16
KEY = (0, 1, 2)
# And bytes of both moments.
KINDS = {"adamw": 8} | ({"adamw_8bit": 2} if extras.is_there("adamw_8bit") else {})


def rounded(values: Tensor, key: tuple[int, ...] = KEY, first: int = 0) -> Tensor:
    weights = torch.empty(len(values), dtype=BF16)
    round_stochastically(weights, values.clone(), key, first)
    return weights


def test_values_of_bf16_stay() -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    values = bits.view(BF16)
    values = values[values.isfinite()]
    assert torch.equal(rounded(values.float()).view(torch.int16), values.view(torch.int16))


def test_what_is_not_a_number_stays_so() -> None:
    # A CPU's, and a GPU's; table entries are added to their bits.
    bits = torch.tensor([0x7FC00000, 0x7FFFFFFF], dtype=torch.int32).repeat(100)
    assert rounded(bits.view(torch.float32)).isnan().all()


def test_others_become_a_neighbour_with_a_probability_by_their_distance() -> None:
    torch.manual_seed(0)
    values = torch.randn(4096) * torch.exp2(torch.randint(-30, 30, (4096,)).float())
    draws = 2000
    found = torch.stack([rounded(values, (seed, 1, 2)) for seed in range(draws)])
    toward_zero = (values.view(torch.int32) & -(2**16)).view(torch.float32).double()
    away = (values.view(torch.int32) & -(2**16)).add(2**16).view(torch.float32).double()
    share = (values.double() - toward_zero) / (away - toward_zero)
    is_away = found.double() == away
    assert ((found.double() == toward_zero) | is_away).all()
    # Standard errors of the mean of all draws, and of those of each value.
    errors = is_away.double().mean(0) - share
    deviations = (share * (1 - share) / draws).sqrt()
    assert abs(errors.sum()) < 4 * (deviations**2).sum().sqrt()
    standard = errors / deviations.clamp_min(1e-3)
    assert standard.abs().max() < 6
    assert standard.std() == pytest.approx(1, abs=0.05)


def test_bits_are_a_function_of_seed_step_name_and_index(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    values = torch.randn(1000)
    state = torch.get_rng_state()
    whole = rounded(values)
    assert torch.equal(torch.get_rng_state(), state)
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not torch.equal(rounded(values, other), whole)
    for cut in (1, 300, 999):
        parts = rounded(values[:cut]), rounded(values[cut:], first=cut)
        assert torch.equal(torch.cat(parts), whole)
    # Parts that lie across the borders of chunks.
    monkeypatch.setattr(rounding, "CHUNK", 256)
    whole = rounded(values)
    assert torch.equal(rounded(values[200:700], first=200), whole[200:700])
    assert not torch.equal(rounded(values[:256].clone(), first=256), whole[:256])


class Two(nn.Module):
    """A tensor that is large enough for 8 bits, and one that isn't."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.randn(70, 63))
        self.small = nn.Parameter(torch.randn(9))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_step_is_that_of_fp32_rounded_to_a_neighbour(device: str, kind: str) -> None:
    torch.manual_seed(0)
    model, exact = Two().to(device, BF16), Two().to(device)
    keys: dict[str, Any] = {"optimizer": kind, "max_grad_norm": 0.5}
    optimizer, reference = Optimizer(Train(weights="bf16", **keys)), Optimizer(Train(**keys))
    made, usual = optimizer.make(model), reference.make(exact)
    optimizer.make_state(made, model.parameters())
    reference.make_state(usual, exact.parameters())
    for step in range(1, 6):
        exact.load_state_dict(model.state_dict())
        for mine, other in zip(model.parameters(), exact.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.float()
        norm = optimizer.step(model, made, 1e-3)
        assert torch.allclose(norm, reference.step(exact, usual, 1e-3), rtol=1e-6)
        for mine, other in zip(model.parameters(), exact.parameters(), strict=True):
            nearest = other.to(BF16).float()
            distance = (mine.float() - other).abs() / torch.exp2(nearest.abs().log2().floor() - 7)
            # A neighbour, but for the rounding of fp32.
            assert distance.max() < 1.001
            assert not torch.equal(mine.float(), nearest)
            state = made.state[mine]
            assert state["step"].item() == step
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_small_step_is_not_lost() -> None:
    model = nn.Linear(64, 64, bias=False).to(BF16)
    nn.init.ones_(model.weight)
    optimizer = Optimizer(Train(weights="bf16", weight_decay=0.0))
    made = optimizer.make(model)
    optimizer.make_state(made, model.parameters())
    for _ in range(100):
        model.weight.grad = torch.full_like(model.weight, 1e-3)
        # The distance to the next number is 2^-8.
        optimizer.step(model, made, 1e-4)
    assert model.weight.float().mean().item() == pytest.approx(1 - 100 * 1e-4, abs=4e-4)


@pytest.mark.parametrize(("kind", "moments"), KINDS.items())
def test_memory_is_what_is_planned(kind: str, moments: int) -> None:
    settings = Train(weights="bf16", optimizer=kind)
    model, optimizer = nn.Linear(64, 128, bias=False).to(BF16), Optimizer(settings)
    made = optimizer.make(model)
    optimizer.make_state(made, model.parameters())
    model(torch.ones(1, 64, dtype=BF16)).sum().backward()
    state = made.state[model.weight]
    assert model.weight.grad is not None
    found = (
        model.weight.nbytes,
        model.weight.grad.nbytes,
        sum(getattr(state[key], "codes", state[key]).nbytes for key in optimizer.moments),
    )
    planned = footprint(settings, 1, model.weight.numel())
    assert found == (planned.parameters, planned.gradients, planned.optimizer)
    assert found == (2 * 8192, 2 * 8192, moments * 8192)


def step_sharded(rank: int, world_size: int, store: str, kind: str) -> None:
    """Hold a step of sharded tensors to that of whole ones, under FSDP2 and HSDP."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    rounding.CHUNK = 512
    torch.manual_seed(0)
    # Of the second, one worker has nothing.
    shapes = {"first": (75, 64), "second": (1, 100)}
    gradients = {name: torch.randn(shape).to(BF16) for name, shape in shapes.items()}
    whole = nn.ParameterDict({name: torch.randn(shape).to(BF16) for name, shape in shapes.items()})
    before = {name: value.detach().clone() for name, value in whole.items()}

    def step(model: nn.ParameterDict, place: Callable[[Tensor], Tensor]) -> None:
        optimizer = Optimizer(Train(weights="bf16", optimizer=kind))
        made = optimizer.make(model)
        optimizer.make_state(made, model.parameters())
        for name, value in model.items():
            value.grad = place(gradients[name])
        optimizer.step(model, made, 0.1)

    step(whole, Tensor.clone)
    layouts: list[tuple[tuple[int, ...], list[Placement]]] = [
        ((2,), [Shard(0)]),
        ((1, 2), [Replicate(), Shard(0)]),
        ((2, 1), [Replicate(), Shard(0)]),
    ]
    for shape, placements in layouts:
        mesh = init_device_mesh("cpu", shape)
        place = partial(distribute_tensor, device_mesh=mesh, placements=placements)
        sharded = nn.ParameterDict({name: nn.Parameter(place(v)) for name, v in before.items()})
        step(sharded, place)
        for name, value in sharded.items():
            assert isinstance(value, DTensor)
            assert torch.equal(value.full_tensor(), whole[name]), (shape, name)
    dist.destroy_process_group()


@pytest.mark.release
@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_rounded_as_the_whole(kind: str, tmp_path: Path) -> None:
    run_forks(step_sharded, (2, str(tmp_path / "store"), kind), 2)


@pytest.fixture
def make_bf16(wide: Path, tmp_path: Path) -> Make:
    """Makes jobs in bf16, unless they say otherwise."""
    make = job_maker(wide, tmp_path)

    def make_job(work: str, **settings: Any) -> RunSpec:
        return make(work, **{"weights": "bf16", "precision": "bf16", **settings})

    return make_job


def kinds_in(job: RunSpec) -> set[tuple[bool, torch.dtype]]:
    """Types of the tensors in a job's last checkpoint, and whether they are optimizer state."""
    listed = FileSystemReader(path_of(folder_of(job.work), 8)).read_metadata().state_dict_metadata
    return {
        (is_state(name), entry.properties.dtype)
        for name, entry in listed.items()
        if isinstance(entry, TensorStorageMetadata)
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.release if kind == "adamw" else []) for kind in KINDS],
)
def test_a_killed_run_ends_with_the_same_bits(kind: str, make_bf16: Make, alone: Worker) -> None:
    undisturbed = check_resumption(make_bf16, alone, 4, optimizer=kind)
    assert kinds_in(undisturbed) == {(False, BF16), (True, torch.float32)}
    usual = make_bf16("usual", weights="fp32")
    train(usual, alone)
    assert losses(undisturbed) == pytest.approx(losses(usual), rel=0.02)


@pytest.mark.long
def test_what_saves_memory_changes_no_bit(make_bf16: Make, alone: Worker) -> None:
    saving = {"gradient_checkpointing": "offload", "micro_batch_size": "auto"}
    plain, saved = make_bf16("plain"), make_bf16("saved", **saving)
    for job in (plain, saved):
        train(job, alone)
    check_same_bits(saved, plain)


@pytest.mark.release
def test_compiled_blocks_change_nothing_but_rounding(make_bf16: Make, alone: Worker) -> None:
    plain, compiled = (make_bf16(str(kind), compile=kind) for kind in (False, True))
    assert not train(plain, alone)["compiled"]
    assert train(compiled, alone)["compiled"]
    assert losses(compiled) == pytest.approx(losses(plain), rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_a_run_goes_on_with_the_other_weights(
    before: str, after: str, make_bf16: Make, alone: Worker
) -> None:
    first = make_bf16("first", weights=before, save_total_limit=10)
    train(first, alone)
    second = without_later(make_bf16, first, "second", 4, weights=after)
    assert train(second, alone)["resumed_from"] == 4
    assert losses(second)[-4:] == pytest.approx(losses(first)[-4:], rel=0.02)


@pytest.mark.release
def test_two_workers_have_the_losses_of_one_and_resume_to_the_same_bits(
    make_bf16: Make, alone: Worker, tmp_path: Path
) -> None:
    check_two_workers(make_bf16, alone, tmp_path, rel=0.02, micro_batch_size=2)


def test_fsdp2_refuses_a_model_that_keeps_weights_in_fp32(wide: Path) -> None:
    model = load_model(wide / "model", BF16)
    settings = Train(weights="bf16", strategy="fsdp2")
    check_weights(model, settings)
    model.model.norm.float()
    check_weights(model, Train(weights="bf16"))
    with pytest.raises(UserError, match=r"which keeps model\.norm\.weight in fp32"):
        check_weights(model, settings)


def test_statistics_of_batches_are_not_kept_in_bf16() -> None:
    shape = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])
    model = ResNetForImageClassification(shape).bfloat16()
    with pytest.raises(UserError, match=r"^train\.weights: bf16 can't be used with a resnet model"):
        check_weights(model, Train(weights="bf16"))
