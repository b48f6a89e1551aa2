"""Steps of tensors that workers have shards of are those of whole ones."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forks import run_forks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Adafactor, Muon

from moray.train.whole_tensors import step_whole

# Of the first, one worker has nothing.
SHAPES = ((1, 24), (5, 8), (6, 4))


def step_sharded(rank: int, world_size: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    mesh = init_device_mesh("cpu", (world_size,))
    kinds: tuple[type[torch.optim.Optimizer], ...] = (Muon, Adafactor)
    for kind in kinds:
        torch.manual_seed(0)
        whole = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
        sharded = [nn.Parameter(distribute_tensor(one.detach(), mesh, [Shard(0)])) for one in whole]
        keys: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1}
        by_pytorch, ours = kind(whole, **keys), kind(sharded, **keys)
        if kind is Muon:
            for one in sharded:
                ours.state[one] = {"momentum_buffer": torch.zeros_like(one)}
        else:
            for one, shape in zip(sharded, SHAPES, strict=True):
                vectors = {"row_var": torch.zeros(shape[0], 1), "col_var": torch.zeros(1, shape[1])}
                ours.state[one] = {"step": torch.zeros(()), **vectors}
        for _ in range(2):
            for one, other in zip(whole, sharded, strict=True):
                one.grad = torch.randn_like(one)
                other.grad = distribute_tensor(one.grad, mesh, [Shard(0)])
            by_pytorch.step()
            step_whole(ours, kind)
        for one, other in zip(whole, sharded, strict=True):
            assert isinstance(other.data, DTensor)
            assert torch.equal(other.data.full_tensor(), one)
            for key, value in by_pytorch.state[one].items():
                kept = ours.state[other][key]
                assert torch.equal(kept.full_tensor() if isinstance(kept, DTensor) else kept, value)
    dist.destroy_process_group()


def test_shards_are_stepped_to_the_bit_even_if_a_worker_has_nothing(tmp_path: Path) -> None:
    run_forks(step_sharded, (2, str(tmp_path / "store")), 2)


def test_what_has_no_gradient_stays() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    step_whole(Muon([parameter]), Muon)
    assert torch.equal(parameter, torch.ones(2, 2))
