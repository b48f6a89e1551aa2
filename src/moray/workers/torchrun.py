"""Start workers with PyTorch's elastic agent, as `torchrun` does, without Ray."""

import os
import pickle
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
    record,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from moray.background import die_with_parent, in_thread
from moray.console import wait_for
from moray.workers.entry import Argument, EntryPoint, Result, Worker, run_entry_point
from moray.workers.launch import Launch, WorkersFailedError, check_cores, reserve_workers


def run(
    entry_point: EntryPoint[Argument, Result], argument: Argument, launch: Launch
) -> list[Result] | None:
    """Run an entry point on workers on this machine; if one is lost, all are restarted.

    Returns:
        The results by rank; None if a worker recorded a fault.

    Raises:
        UserError: if there are too few resources for the workers.
        WorkersFailedError: if workers were lost or failed more often than the config allows.
    """
    check_cores(launch.ray, launch.path)
    with reserve_workers(launch) as layout, TemporaryDirectory(prefix="moray-") as folder:
        task, results = Path(folder, "task.pickle"), Path(folder, "results.pickle")
        device = "gpu" if layout.use_gpu else "cpu"
        work = (entry_point, argument, device, launch.folder, launch.timeout)
        # Workers need the same `sys.path` to import modules; Ray does this by itself.
        task.write_bytes(pickle.dumps(sys.path) + pickle.dumps(work))
        _start(layout.num_workers, [str(task), str(results)], launch.ray.max_failures)
        # Safe to unpickle: written by our own worker, in a folder that only this user can write to.
        all_results: list[Result] | None = pickle.loads(results.read_bytes())
        return all_results


def _start(workers: int, arguments: list[str], max_restarts: int) -> None:
    with TemporaryDirectory(prefix="moray-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=max_restarts,
            monitor_interval=0.2,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        # Otherwise, all attempts share a store, and workers of a later attempt find the addresses
        # of dead workers there and wait for them.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        wait_for("the workers, which load libraries and the model")
        try:
            elastic_launch(config, sys.executable)("-m", __name__, *arguments)
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            raise WorkersFailedError(f"worker {failure.local_rank}: {_line(failure)}") from error


def _line(failure: ProcessFailure) -> str:
    """The end of a worker in one line: a signal, or its exception; the trace is in the log."""
    # Typed as text, but of an exception it is what `record` has written.
    message: Any = failure.message
    if isinstance(message, dict):
        message = message["message"]
    return str(message).strip().partition("\n")[0]


def _end_with_agent() -> None:
    """End when the agent sends SIGTERM, even if it is blocked: the agent would wait for 30 s."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _process_group(device_type: str, timeout: float) -> Iterator[Worker]:
    die_with_parent()
    if sys.platform == "linux":
        in_thread(_end_with_agent)
    device = torch.device("cpu")
    if device_type == "gpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(
        # Checkpoints go through main memory, and so through gloo, on GPUs too.
        "cpu:gloo,cuda:nccl" if device_type == "gpu" else "gloo",
        timeout=timedelta(seconds=timeout),
    )
    try:
        yield Worker(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()


def _leave() -> NoReturn:
    """End without the interpreter's clean-up.

    In it, native threads of libraries abort the process now and then, which the agent would take
    for a failure of the work that is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@record
def _main(task: str, results: str) -> None:
    with Path(task).open("rb") as file:
        sys.path[:] = pickle.load(file)
        entry_point, argument, device_type, folder, timeout = pickle.load(file)
    with _process_group(device_type, timeout) as worker:
        all_results = run_entry_point(entry_point, argument, worker, folder)
        if worker.rank == 0:
            Path(results).write_bytes(pickle.dumps(all_results))
        if all_results is None:
            # A thread may be waiting in a collective for a failed worker, which would keep the
            # process group from closing. The agent treats any other status as a failure.
            _leave()
    _leave()


if __name__ == "__main__":
    _main(*sys.argv[1:])
