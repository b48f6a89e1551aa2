"""What a step asks of the host, the compiler and the network: as little as was meant."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from forks import run_forks
from jobs import Make
from present import present
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from moray.config import extras
from moray.config.schema.train import Adapter
from moray.model.forward import blocks_of
from moray.model.load import load_model
from moray.rows.store import StoredRows
from moray.train import engine, kernels, step
from moray.train.spec import RunSpec
from moray.train.step import gradients, micro_batches
from moray.train.strategies import make_strategy
from moray.train.task import task_of
from moray.workers.entry import Worker


@pytest.mark.parametrize("adapter", [None, Adapter(rank=2)], ids=["full", "LoRA"])
@pytest.mark.parametrize(
    ("optimizer", "weights"),
    [
        (optimizer, weights)
        for optimizer in ("adamw", *present(extras.OPTIMIZERS))
        for weights in ("fp32", *present(extras.WEIGHTS))
        # PyTorch's Adafactor reads norms. Muon has no step that rounds weights.
        if optimizer != "adafactor" and (optimizer, weights) != ("muon", "bf16")
    ],
)
def test_a_step_never_waits_for_the_device(
    adapter: Adapter | None,
    optimizer: str,
    weights: str,
    make_job: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a device whose tensors have no values, so that whatever reads one fails."""
    worker = Worker(0, 1, torch.device("meta"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    # It has no autocast.
    monkeypatch.setattr(step, "autocast", lambda precision, device: nullcontext())
    job = make_job(
        adapter=adapter, optimizer=optimizer, weights=weights, precision="bf16", compile=False
    )
    strategy, task = make_strategy(job.settings, worker), task_of(job.store, {})
    engine.build(job, worker, strategy, task, num_rows=1)
    assert strategy.module.attention == "varlen"
    rows = StoredRows(job.store, "train").rows
    for first in range(0, 8, 4):
        batches = micro_batches(task, rows[first : first + 4], 2)
        gradients(strategy, batches, 1.0, job.settings, worker)
        strategy.step(1e-3)


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts them, by their names in PyTorch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            # Asked again for what it does with this worker's shards.
            return NotImplemented
        name = func.overloadpacket.__name__
        if "c10d" in func.namespace and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


def count_collectives(
    rank: int, store: str, cases: list[tuple[RunSpec, int, Counter[str]]]
) -> None:
    """Check the collectives of a worker's second step, in so many micro-batches."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    worker = Worker(rank, 2, torch.device("cpu"))
    for job, number, expected in cases:
        strategy, task = make_strategy(job.settings, worker), task_of(job.store, {})
        engine.build(job, worker, strategy, task, num_rows=1)
        rows = StoredRows(job.store, "train").rows
        for first in (0, 4):
            batches = micro_batches(task, rows[first : first + 4], 4 // number)
            with Collectives() as collectives:
                gradients(strategy, batches, 1.0, job.settings, worker)
                strategy.step(1e-3)
        assert collectives.seen == expected, (job.settings.strategy, number, collectives.seen)
    dist.destroy_process_group()


@pytest.mark.release
def test_a_step_has_the_collectives_that_its_strategy_needs(make_job: Make, tmp_path: Path) -> None:
    # Two blocks, and what is around them.
    units = 3
    cases = []
    for number in (1, 2):
        # The gradients, which fit into one bucket, and which of them some worker has.
        cases.append((make_job(compile=False), number, Counter(allreduce_=2)))
        # What is outside of blocks, or everything, stays gathered for the backward pass; everything
        # for the next micro-batch too.
        for reshard, gathers in ((True, (2 * units - 1) * number), (False, units)):
            job = make_job(
                compile=False, strategy="fsdp2", fsdp2={"reshard_after_forward": reshard}
            )
            expected = {
                "_allgather_base_": gathers,
                "_reduce_scatter_base_": units,
                # The norm.
                "all_reduce": 1,
            }
            cases.append((job, number, Counter(expected)))
    run_forks(count_collectives, (str(tmp_path / "rendezvous"), cases), 2)


def count_graphs(rank: int, store: str, job: RunSpec, expected: dict[str, int]) -> None:
    """Check how many graphs a forward pass runs in a worker of two, as compiled for a device."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    worker, runs = Worker(rank, 2, torch.device("cpu")), 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            nonlocal runs
            runs += 1
            return graph(*values)

        return run

    def compile_model(model: PreTrainedModel, whole: bool) -> None:
        for block in blocks_of(model):
            block.compile(dynamic=False, backend=count)

    task = task_of(job.store, {})
    for device, number in expected.items():
        strategy = make_strategy(job.settings, worker)
        module = task.loss_module(load_model(job.start))
        with (
            patch.object(kernels, "compile_model", compile_model),
            patch.object(module, "compile_loss"),
        ):
            kernels.compile_module(module, False, torch.device(device))
        strategy.wrap(module)
        batch = task.batch(StoredRows(job.store, "train").rows[:2], None)
        runs = 0
        strategy.module(batch)
        assert runs == number, (device, runs)
        torch._dynamo.reset()
    dist.destroy_process_group()


@pytest.mark.long
def test_ddp_runs_each_block_as_one_graph_on_gpus(make_job: Make, tmp_path: Path) -> None:
    """On CPUs DDP cuts it where a bucket ends: runs of older versions keep their bits."""
    job = make_job(compile=True)
    vocabulary = load_model(job.start).config.vocab_size
    # Blocks of 3 MB; the first bucket has 1 MB.
    config = GPT2Config(n_layer=2, n_embd=256, n_head=2, vocab_size=vocabulary)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    job = replace(job, start=tmp_path / "gpt2")
    expected = {"cpu": 2 * config.n_layer, "cuda": config.n_layer}
    run_forks(count_graphs, (str(tmp_path / "rendezvous"), job, expected), 2)
