"""What the libraries behind the strategies are given; DDP over gloo, in real processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checkpoints import check_same_bits
from fleet import losses
from forks import run_forks
from torch.distributed.fsdp import CPUOffloadPolicy

from moray.config.schema.train import Adapter, Train
from moray.errors import UserError
from moray.model.load import load_model
from moray.storage.interface import folder_of, path_of
from moray.tasks.language.loss import TokenLoss
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.train.strategies import ddp, fsdp2, make_strategy
from moray.workers.entry import Worker


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("given", [True, False])
def test_fsdp2_has_the_options_of_the_config(alone: Worker, given: bool) -> None:
    settings = Train.model_validate(
        {"strategy": "fsdp2", "fsdp2": {"reshard_after_forward": given, "cpu_offload": given}}
    )
    options = fsdp2.strategy(settings, alone)._options()
    assert options["reshard_after_forward"] is (None if given else False)
    assert isinstance(options["offload_policy"], CPUOffloadPolicy) is given


@pytest.mark.usefixtures("group")
def test_workers_that_make_no_whole_copies_are_refused(alone: Worker) -> None:
    settings = Train.model_validate({"strategy": "fsdp2", "fsdp2": {"shard_size": 2}})
    with pytest.raises(UserError) as caught:
        fsdp2.strategy(settings, alone)._options()
    assert str(caught.value) == (
        "train.fsdp2.shard_size: got 2, expected a divisor of the number of workers (1); change "
        "it, or set ray.num_workers"
    )


def test_an_architecture_that_names_no_blocks_is_refused(model_folder: Path, alone: Worker) -> None:
    model = load_model(model_folder)
    model._no_split_modules = None
    with pytest.raises(UserError) as caught:
        fsdp2.strategy(Train(strategy="fsdp2"), alone).wrap(TokenLoss(model, True))
    assert str(caught.value) == (
        "train.strategy: fsdp2 shards a model block by block, but transformers doesn't say "
        "which modules of a llama model are its blocks; choose ddp"
    )


@pytest.mark.parametrize(("name", "strategy"), [("ddp", ddp.strategy), ("fsdp2", fsdp2.strategy)])
def test_the_strategy_is_that_of_the_config(name: Any, strategy: type, alone: Worker) -> None:
    assert type(make_strategy(Train(strategy=name), alone)) is strategy


def work(rank: int, world_size: int, store: str, job: RunSpec) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    train(job, Worker(rank, world_size, torch.device("cpu")))
    dist.destroy_process_group()


def train_on(world_size: int, job: RunSpec, folder: Path) -> None:
    store = folder / f"rendezvous-{job.work.name}-{world_size}"
    run_forks(work, (world_size, str(store), job), world_size)


@pytest.mark.long
def test_three_workers_resume_to_the_same_bits(make_job: Any, tmp_path: Path) -> None:
    """With three, the order of summation matters, and must not depend on when DDP began."""
    settings = {"global_batch_size": 9, "save_total_limit": 10, "save_steps": 3}
    undisturbed, resumed = make_job("undisturbed", **settings), make_job("resumed", **settings)
    train_on(3, undisturbed, tmp_path)
    train_on(3, resumed, tmp_path)
    folder = folder_of(resumed.work)
    for step in (6, 8):
        (path_of(folder, step) / "manifest.json").unlink()
    (tmp_path / "rendezvous-resumed-3").unlink(missing_ok=True)
    train_on(3, resumed, tmp_path)
    check_same_bits(resumed, undisturbed)


def work_each(rank: int, world_size: int, store: str, jobs: list[RunSpec]) -> None:
    for number, job in enumerate(jobs):
        work(rank, world_size, f"{store}-{number}", job)


@pytest.mark.long
@pytest.mark.parametrize(
    "adapter", [None, pytest.param(Adapter(rank=4), marks=pytest.mark.release)]
)
def test_parameters_that_stay_gathered_after_an_evaluation_are_saved_as_shards(
    adapter: Adapter | None, make_job: Any, tmp_path: Path
) -> None:
    """Each other checkpoint follows an evaluation. A step has two micro-batches."""
    same: dict[str, Any] = {"strategy": "fsdp2", "micro_batch_size": 2}
    jobs = [
        make_job(f"{adapter} {gathered}", adapter, fsdp2=keys, **same)
        for gathered, keys in ((False, {}), (True, {"reshard_after_forward": False}))
    ]
    run_forks(work_each, (2, str(tmp_path / "rendezvous"), jobs), 2)
    freed, gathered = jobs
    check_same_bits(gathered, freed)
    assert losses(gathered, "eval_loss") == losses(freed, "eval_loss")
