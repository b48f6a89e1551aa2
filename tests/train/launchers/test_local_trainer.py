"""Ray Train on a real Ray of the test's own."""

from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import ray.train.collective
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig

from moray.train.launchers.local_trainer import LocalTrainer


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Any:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def _trainer(work: Any, folder: Path, max_failures: int = 0) -> LocalTrainer:
    return LocalTrainer(
        work,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="test",
            storage_path=str(folder),
            failure_config=FailureConfig(max_failures=max_failures),
        ),
    )


def test_only_the_processes_that_a_local_run_needs_are_started(tmp_path: Path) -> None:
    """A version of Ray Train that starts more, or starts them elsewhere, fails here."""

    def work() -> list[str]:
        # Through the synchronisation, which is up then.
        ray.train.collective.barrier()
        raylet = psutil.Process().parent()
        assert raylet is not None
        titles = [process.cmdline()[0].partition(".")[0] for process in raylet.children()]
        return sorted(title for title in titles if title.startswith("ray::"))

    titles = _trainer(work, tmp_path).fit().return_value
    assert [title for title in titles if not title.endswith(("Agent", "IDLE"))] == [
        "ray::RayTrainWorker",
        "ray::RayTrainWorker",
        "ray::SynchronizationActor",
        "ray::TrainController",
    ]


def test_workers_that_are_lost_are_replaced_as_often_as_asked(tmp_path: Path) -> None:
    """All cores are held by the workers: those of an attempt must have been given back."""

    def work() -> int:
        import os

        import torch.distributed as dist

        attempts = tmp_path / f"worker-{dist.get_rank()}"
        with attempts.open("a") as file:
            file.write("x")
        dist.barrier()
        if dist.get_rank() == 1 and len(attempts.read_text()) < 3:
            os._exit(1)
        dist.barrier()
        return len(attempts.read_text())

    assert _trainer(work, tmp_path / "ray", max_failures=2).fit().return_value == 3
