"""Start workers with Ray Train."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from moray.background import call_repeatedly, in_thread
from moray.config.layout import Layout
from moray.console import say, wait_for
from moray.errors import UserError
from moray.workers.cluster import connect_ray, lack
from moray.workers.entry import Argument, EntryPoint, Result, Worker, run_entry_point
from moray.workers.launch import Launch, WorkersFailedError, worker_resources
from moray.workers.preemption import PreemptedError, no_notice, notices_of_ray

_REPORT_SECONDS = 2.0
_POLL_SECONDS = 1.0
# Shorter absences are those between two attempts.
_SECONDS_BEFORE_LINE = 10.0
# Ray Train's view of an elastic run's resources is up to 20 s old, so it may try a size for which
# there is no room any more.
_SECONDS_BETWEEN_SIZES = 5.0

# What a worker returns that is to be started again. To Ray Train, it has ended well: an error would
# count as a failure.
_PREEMPTED: Literal["preempted"] = "preempted"


class _LostWhileStartingError(Exception):
    """A worker was lost before Ray Train had sent the function to all of them.

    Ray Train takes this for a failure of its controller, which it doesn't retry, and leaves the
    workers' resources reserved until the driver disconnects.
    """


class _Presence:
    """Whether workers are there, on the side of the driver and, pickled, on that of a worker.

    Ray Train starts lost workers again and again, for ever if a node doesn't come back. It doesn't
    say whether workers are there, so they report to an actor next to the driver, which asks it.
    """

    def __init__(self) -> None:
        """Start the actor on this node; connect to Ray first."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Nested, so that it is pickled by value: its process needn't import PyTorch.
        class LastReport:
            def __init__(self) -> None:
                self._last = time.monotonic()

            def report(self) -> None:
                self._last = time.monotonic()

            def absence(self) -> float:
                return time.monotonic() - self._last

        here = ray.get_runtime_context().get_node_id()
        self._actor: Any = (
            ray.remote(num_cpus=0)(LastReport)
            .options(scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False))
            .remote()
        )

    @contextmanager
    def report_presence(self) -> Iterator[None]:
        self._actor.report.remote()
        with call_repeatedly(self._actor.report.remote, _REPORT_SECONDS):
            yield

    def watch(self, function: Callable[[], Result], launch: Launch, layout: Layout) -> Result:
        """Call a function that waits for workers in a thread; give up if no worker starts.

        Raises:
            UserError: if there were no workers for `ray.start_timeout`.
            Exception: what the function raised.
        """
        import ray

        limit, call = launch.ray.start_timeout, in_thread(function)
        is_announced, before = _announce_lack(launch, layout), 0.0
        while wait([call], _POLL_SECONDS).not_done:
            absence = ray.get(self._actor.absence.remote())
            if absence > limit:
                why = lack(launch, layout) or "the cluster has room for them, but none started"
                raise UserError(
                    f"{launch.path}.start_timeout",
                    f"no workers for {limit:g} s: {why}",
                    "add nodes, lower num_workers, or raise it; the same command continues",
                )
            if absence < before:
                is_announced = False
            if not is_announced and absence > _SECONDS_BEFORE_LINE:
                is_announced = _announce_lack(launch, layout)
            before = absence
        return call.result()


def _announce_lack(launch: Launch, layout: Layout) -> bool:
    """Tell the user what workers wait for, if they do."""
    if lacking := lack(launch, layout):
        say(f"waiting up to {launch.ray.start_timeout:g} s for {lacking}")
    return lacking is not None


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
            with connect_ray(launch) as layout:
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
    presence = None if launch.ray.address == "local" else _Presence()
    number, fewest = layout.num_workers, layout.min_workers
    # How long Ray Train waits for workers to start before it considers their number again.
    seconds = launch.ray.start_timeout if fewest is None else _SECONDS_BETWEEN_SIZES
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = f"{seconds:g}"
    work: Callable[[], list[Result] | Literal["preempted"] | None] = partial(
        _work, entry_point, argument, launch.folder, presence
    )

    def fit() -> list[Result] | None:
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
                    # Of workers that are still there when their node is taken away.
                    max_preemption_failures=-1,
                ),
            ),
        )
        results: list[Result] | Literal["preempted"] | None = trainer.fit().return_value
        return fit() if results == _PREEMPTED else results

    wait_for("the workers, which load libraries and the model")
    try:
        if presence is None:
            return fit()
        return presence.watch(fit, launch, layout)
    except TrainingFailedError as error:
        last_line = str(error).strip().splitlines()[-1]
        if isinstance(error, ControllerError) and isinstance(
            error.controller_failure, RayActorError
        ):
            raise _LostWhileStartingError(last_line) from error
        if _is_startup_timeout(error):
            raise UserError(
                f"{launch.path}.start_timeout",
                f"the workers didn't start in {seconds:g} s, though the machine has room for them",
                "end other programs, raise it, or set train.launcher to torchrun, which starts "
                "fewer processes; the same command continues",
            ) from error
        raise WorkersFailedError(last_line) from error


def _is_startup_timeout(error: Exception) -> bool:
    failure = getattr(error, "controller_failure", None)
    # The class isn't public.
    return type(failure).__name__ == "WorkerGroupStartupTimeoutError"


def _work(
    entry_point: EntryPoint[Argument, Result],
    argument: Argument,
    folder: Path,
    presence: _Presence | None,
) -> list[Result] | Literal["preempted"] | None:
    import ray.train
    import ray.train.torch

    context, device = ray.train.get_context(), ray.train.torch.get_device()
    with (
        presence.report_presence() if presence else nullcontext(),
        notices_of_ray() if presence else nullcontext(no_notice) as notice,
    ):
        worker = Worker(context.get_world_rank(), context.get_world_size(), device, notice)
        try:
            return run_entry_point(entry_point, argument, worker, folder)
        except PreemptedError:
            return _PREEMPTED
