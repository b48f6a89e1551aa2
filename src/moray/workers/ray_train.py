"""Start workers with Ray Train."""

import os
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from moray.config.layout import Layout
from moray.errors import UserError
from moray.workers.cluster import connected, lack
from moray.workers.entry import EntryPoint, run_entry_point
from moray.workers.launch import Launch, WorkersFailedError
from moray.workers.presence import NoWorkersError, Presence
from moray.workers.resources import worker_resources
from moray.workers.worker import Worker

Argument = TypeVar("Argument")
Result = TypeVar("Result")

# Ray Train's view of an elastic run's resources is up to 20 s old, so it may try a size for which
# there is no room any more.
_SECONDS_BETWEEN_SIZES = 5.0


class _LostWhileStartingError(Exception):
    """A worker was lost before Ray Train had sent the function to all of them.

    Ray Train takes this for a failure of its controller, which it doesn't retry, and leaves the
    workers' resources reserved until the driver disconnects.
    """


def run(
    entry_point: EntryPoint[Argument, Result], argument: Argument, launch: Launch
) -> list[Result] | None:
    """Run an entry point on Ray workers; lost workers are replaced.

    Returns:
        The results by rank; None if a worker recorded a fault.

    Raises:
        UserError: if there are too few resources for the workers, on a cluster for longer than
            `ray.start_timeout`.
        WorkersFailedError: if workers were lost or failed more often than the config allows.
    """
    for _ in range(launch.ray.max_failures + 1):
        try:
            with connected(launch) as layout:
                return _run(entry_point, argument, launch, layout)
        except _LostWhileStartingError as error:
            failure = error
    raise WorkersFailedError(str(failure)) from failure


def _run(
    entry_point: EntryPoint[Argument, Result], argument: Argument, launch: Launch, layout: Layout
) -> list[Result] | None:
    from ray.exceptions import RayActorError
    from ray.train import (
        ControllerError,
        FailureConfig,
        RunConfig,
        ScalingConfig,
        TrainingFailedError,
    )
    from ray.train.torch import TorchConfig, TorchTrainer

    # The nodes of a local Ray can't be lost by themselves.
    presence = None if launch.ray.address == "local" else Presence()
    if presence:
        _set_start_timeout(launch, layout)
    work: Callable[[], list[Result] | None] = partial(
        _work, entry_point, argument, launch.folder, presence
    )
    number, fewest = layout.num_workers, layout.min_workers
    trainer = TorchTrainer(
        work,
        torch_config=TorchConfig(
            # Checkpoints go through main memory, and so through gloo, on GPUs too.
            backend="cpu:gloo,cuda:nccl" if layout.use_gpu else "gloo",
            timeout_s=round(launch.timeout),
        ),
        scaling_config=ScalingConfig(
            num_workers=number if fewest is None else (fewest, number),
            use_gpu=layout.use_gpu,
            resources_per_worker=worker_resources(launch.ray, layout),
        ),
        run_config=RunConfig(
            # Ray's run state doesn't survive a crash, so each start gets a new one.
            name=f"attempt-{uuid.uuid4().hex[:8]}",
            storage_path=str(launch.folder / "ray"),
            failure_config=FailureConfig(
                max_failures=launch.ray.max_failures,
                # On a cluster, failed starts end with `start_timeout`, however many there are.
                controller_failure_limit=-1 if presence else launch.ray.max_failures,
            ),
        ),
    )

    def fit() -> list[Result] | None:
        results: list[Result] | None = trainer.fit().return_value
        return results

    try:
        if presence is None:
            return fit()
        return presence.watched(fit, launch.ray.start_timeout, partial(lack, launch, layout))
    except NoWorkersError as error:
        raise UserError(
            f"{launch.path}.start_timeout",
            f"no workers for {launch.ray.start_timeout:g} s: {error}",
            "add nodes, lower num_workers, or raise it; the same command continues",
        ) from error
    except TrainingFailedError as error:
        last_line = str(error).strip().splitlines()[-1]
        if isinstance(error, ControllerError) and isinstance(
            error.controller_failure, RayActorError
        ):
            raise _LostWhileStartingError(last_line) from error
        raise WorkersFailedError(last_line) from error


def _set_start_timeout(launch: Launch, layout: Layout) -> None:
    """Set how long Ray Train waits for room for workers before it considers their number again."""
    elastic = layout.min_workers is not None
    seconds = _SECONDS_BETWEEN_SIZES if elastic else launch.ray.start_timeout
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = f"{seconds:g}"


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
    entry_point: EntryPoint[Argument, Result],
    argument: Argument,
    folder: Path,
    presence: Presence | None,
) -> list[Result] | None:
    with presence.reported() if presence else nullcontext():
        return run_entry_point(entry_point, argument, this_worker(), folder)
