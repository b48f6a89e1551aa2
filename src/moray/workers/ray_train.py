"""Start workers with Ray Train."""

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from moray.workers.cluster import connected, worker_resources
from moray.workers.entry import EntryPoint, run_entry_point
from moray.workers.launch import Launch, WorkersFailedError
from moray.workers.worker import Worker

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def run(
    entry_point: EntryPoint[Argument, Result], argument: Argument, launch: Launch
) -> list[Result] | None:
    """Run an entry point on Ray workers; lost workers are replaced.

    Returns:
        The results by rank; None if a worker recorded a fault.

    Raises:
        UserError: if there are too few resources for the workers.
        WorkersFailedError: if workers were lost or failed more often than the config allows.
    """
    with connected(launch) as layout:
        from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.torch import TorchConfig, TorchTrainer

        work: Callable[[], list[Result] | None] = partial(
            _work, entry_point, argument, launch.folder
        )
        trainer = TorchTrainer(
            work,
            torch_config=TorchConfig(
                # Checkpoints go through main memory, and so through gloo, on GPUs too.
                backend="cpu:gloo,cuda:nccl" if layout.use_gpu else "gloo",
                timeout_s=round(launch.timeout),
            ),
            scaling_config=ScalingConfig(
                num_workers=layout.num_workers,
                use_gpu=layout.use_gpu,
                resources_per_worker=worker_resources(launch.ray, layout),
            ),
            run_config=RunConfig(
                # Ray's run state doesn't survive a crash, so each start gets a new one.
                name=f"attempt-{uuid.uuid4().hex[:8]}",
                storage_path=str(launch.folder / "ray"),
                failure_config=FailureConfig(
                    max_failures=launch.ray.max_failures,
                    controller_failure_limit=launch.ray.max_failures,
                ),
            ),
        )
        try:
            results: list[Result] | None = trainer.fit().return_value
        except TrainingFailedError as error:
            raise WorkersFailedError(str(error).strip().splitlines()[-1]) from error
    return results


def this_worker() -> Worker:
    """The `Worker` of the calling Ray worker."""
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    return Worker(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        device=ray.train.torch.get_device(),
    )


def _work(
    entry_point: EntryPoint[Argument, Result], argument: Argument, folder: Path
) -> list[Result] | None:
    return run_entry_point(entry_point, argument, this_worker(), folder)
