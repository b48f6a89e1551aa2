"""Starting the workers with Ray Train."""

import uuid
from functools import partial
from typing import Any

from moray.config.schema import Ray
from moray.errors import UserError
from moray.train.job import Job
from moray.train.launchers.work import work
from moray.train.supervision.failures import WorkersFailedError
from moray.workers.cluster import connected
from moray.workers.worker import Worker


def launch(job: Job, ray_settings: Ray, run: str) -> dict[str, Any]:
    """Train a job on Ray workers; lost workers are replaced and resume.

    Returns:
        What the loop returned on the first worker.

    Raises:
        UserError: what a worker raised, or if the workers ask for more than there is.
        WorkersFailedError: if workers were lost or failed more often than the config allows.
    """
    with connected(ray_settings, f"runs.{run}.ray", job.rows_url is not None) as use_gpu:
        from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.torch import TorchConfig, TorchTrainer

        from moray.train.launchers.local_trainer import LocalTrainer

        # Ray Data, which feeds a stream, shares cores with the workers through an autoscaler.
        alone = ray_settings.address == "local" and job.rows_url is None
        trainer = (LocalTrainer if alone else TorchTrainer)(
            partial(_work, job),
            # Checkpoints go through main memory, and so through gloo, on GPUs too.
            torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=ray_settings.num_workers,
                use_gpu=use_gpu,
                resources_per_worker=dict(ray_settings.resources_per_worker),
            ),
            run_config=RunConfig(
                # Ray's own run state doesn't survive a crash: each attempt has a fresh one.
                name=f"attempt-{uuid.uuid4().hex[:8]}",
                storage_path=str(job.work / "ray"),
                failure_config=FailureConfig(
                    max_failures=ray_settings.max_failures,
                    controller_failure_limit=ray_settings.max_failures,
                ),
            ),
        )
        try:
            outcome: dict[str, Any] = trainer.fit().return_value
        except TrainingFailedError as error:
            raise WorkersFailedError(str(error).strip().splitlines()[-1]) from error
    if "fault" in outcome:
        raise UserError(*outcome["fault"])
    return outcome


def this_worker() -> Worker:
    """Where a Ray worker is, told by itself."""
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    return Worker(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        device=ray.train.torch.get_device(),
    )


def _work(job: Job) -> dict[str, Any]:
    return work(job, this_worker())
