"""Bytes that a step of training sends from one node to the other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from clusters.driver import PATHS, Driven, drive, on_cluster
from clusters.nodes import two_nodes
from jobs import job_maker
from safetensors import safe_open
from small_model import MODEL

from moray.stages.base_model import base_model
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

pytestmark = pytest.mark.release

STEPS = {"few": 3, "many": 13}
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp2": {"strategy": "fsdp2"},
    "hsdp": {"strategy": "fsdp2", "fsdp2": {"shard_size": 2}},
    "zero-2": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 2}},
}
# In bytes of the parameters, with two workers on each node. A ring of workers crosses the cable
# once in each direction: an all-reduce sends 2 · 3/4 of the whole over it, an all-gather 3/4.
ALL_REDUCE, ALL_GATHER = 2 * 3 / 4, 3 / 4
EXPECTED = {
    "ddp": ALL_REDUCE,
    # Parameters are gathered for forward and for backward; gloo's reduce-scatter is an all-reduce.
    "fsdp2": 2 * ALL_GATHER + ALL_REDUCE,
    # Each of two pairs of workers across the nodes exchanges its half.
    "hsdp": 2 * (2 * 1 / 2) / 2,
    "zero-2": ALL_REDUCE + ALL_GATHER,
}


def sent() -> int:
    """Bytes that this node has sent."""
    # Of the process's own network namespace, unlike /sys.
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (cable,) = [line for line in lines if line.strip().startswith("eth0:")]
    return int(cable.split(":")[1].split()[8])


def sent_by_all() -> int:
    """Bytes that this node has sent when every worker is here, and before any goes on."""
    dist.barrier()
    count = sent()
    dist.barrier()
    return count


def train_and_count(jobs: list[RunSpec], worker: Worker) -> None:
    """Train jobs on this worker, and write down what its node has sent during each."""
    from moray.train.loop import train

    for job in jobs:
        before = sent_by_all()
        train(job, worker)
        (job.work / f"sent-{worker.rank}").write_text(str(sent_by_all() - before))


def parameters(model: Path) -> int:
    """Bytes of a model's parameters in fp32."""
    with safe_open(model / "model.safetensors", "pt") as file:
        return sum(4 * file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118


def test_bytes_between_nodes_follow_from_the_strategy(small: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    # Large enough that what Ray sends during a step, more on a busy machine, is little beside it.
    model = tmp_path / "model"
    base_model(model, MODEL | {"hidden_size": 256, "intermediate_size": 512}, small / "dataset")
    make = job_maker(small, tmp_path / "jobs")
    keys = {"global_batch_size": 4, "micro_batch_size": 1, "eval_steps": 1000, "save_steps": 1000}
    jobs = {
        (engine, name): replace(
            make(f"{engine} {name}", max_steps=steps, **keys, **settings), start=model
        )
        for engine, settings in ENGINES.items()
        for name, steps in STEPS.items()
    }
    with two_nodes(tmp_path) as nodes:
        for name in ("a", "b"):
            nodes.start(name, cpus=2, paths=PATHS)
        ray = on_cluster(num_workers=4)
        driven = Driven(tmp_path / "shared", ray, list(jobs.values()), train_and_count)
        done = drive(nodes, driven)
    assert done.returncode == 0, done.stderr

    def a_step(engine: str, rank: int) -> float:
        few, many = (
            int((jobs[engine, name].work / f"sent-{rank}").read_text()) for name in ("few", "many")
        )
        return (many - few) / (STEPS["many"] - STEPS["few"])

    whole = parameters(model)
    found = {engine: a_step(engine, rank=0) / whole for engine in ENGINES}
    # Packet headers and Ray's own traffic come on top.
    assert found == pytest.approx(EXPECTED, rel=0.05)
