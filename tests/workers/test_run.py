"""Entry points on real workers of each launcher."""

import atexit
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from moray.config.schema.sections import Ray
from moray.errors import UserError
from moray.workers.entry import Worker
from moray.workers.launch import Launch, WorkersFailedError
from moray.workers.run import run_on_workers

# Starting Ray takes many seconds.
RAY_IS_SLOW = [pytest.param("ray", marks=pytest.mark.release), "torchrun"]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Launch:
    """Two workers; with retries, which a fault must not spend."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    ray = Ray(num_workers=2, max_failures=2)
    return Launch(ray, "runs.name.ray", tmp_path, request.param, timeout=60)


def sum_and_rank(addend: int, worker: Worker) -> tuple[int, int]:
    total = torch.tensor(worker.rank + addend)
    dist.all_reduce(total)
    print(f"hello from {worker.rank}")
    os.write(2, b"from C\n")
    return int(total), worker.rank


@pytest.mark.parametrize("launch", RAY_IS_SLOW, indirect=True)
def test_each_workers_result_is_returned_and_what_it_prints_is_logged_with_its_rank(
    launch: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_on_workers(sum_and_rank, 10, launch) == [(21, 0), (21, 1)]
    out, log = capfd.readouterr()
    for rank in (0, 1):
        assert f"[worker {rank}] hello from {rank}\n" in log
        assert f"[worker {rank}] from C\n" in log
    assert "hello" not in out


def abort_at_exit(attempts: Path, worker: Worker) -> int:
    with (attempts / f"attempts-{worker.rank}").open("a") as file:
        file.write("x")
    atexit.register(os.abort)
    return worker.rank


@pytest.mark.long
@pytest.mark.parametrize("launch", ["torchrun"], indirect=True)
def test_a_native_crash_when_all_work_is_done_repeats_nothing(launch: Launch) -> None:
    """Threads of libraries now and then abort a process that exits."""
    assert run_on_workers(abort_at_exit, launch.folder, launch) == [0, 1]
    assert [(launch.folder / f"attempts-{rank}").read_text() for rank in (0, 1)] == ["x", "x"]


def fail_on_one(attempts: Path, worker: Worker) -> None:
    with (attempts / f"attempts-{worker.rank}").open("a") as file:
        file.write("x")
    # The fault ends the other worker, which must have counted its attempt by then.
    dist.barrier()
    if worker.rank == 1:
        raise UserError("a.key", "is wrong", "set it right")
    dist.barrier()


@pytest.mark.parametrize("launch", RAY_IS_SLOW, indirect=True)
def test_a_fault_of_one_worker_ends_those_that_wait_for_it_and_spends_no_retry(
    launch: Launch,
) -> None:
    """A collective would wait for a minute, and a retry would count a second attempt."""
    with pytest.raises(UserError, match=r"^a\.key: is wrong; set it right$"):
        run_on_workers(fail_on_one, launch.folder, launch)
    attempts = [(launch.folder / f"attempts-{rank}").read_text() for rank in (0, 1)]
    assert attempts == ["x", "x"]


def lose_one(attempts: Path, worker: Worker) -> int:
    file = attempts / f"attempts-{worker.rank}"
    with file.open("a") as stream:
        stream.write("x")
    dist.barrier()
    if worker.rank == 1 and len(file.read_text()) < 3:
        os.write(2, b"a native crash\n")
        os._exit(1)
    dist.barrier()
    return len(file.read_text())


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param("ray", marks=pytest.mark.release),
        pytest.param("torchrun", marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_workers_that_are_lost_are_replaced_as_often_as_the_config_allows(
    launch: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_on_workers(lose_one, launch.folder, launch)[1] == 3
    assert capfd.readouterr().err.count("[worker 1] a native crash\n") == 2


def index_beyond(attempts: Path, worker: Worker) -> None:
    if worker.rank == 1:
        with attempts.open("a") as file:
            file.write("x")
        [][worker.rank]
    dist.barrier()


class LostOnArrival:
    """An argument that ends its worker's process when it arrives there, the first two times."""

    def __init__(self, arrivals: Path) -> None:
        self._arrivals = arrivals

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        with self._arrivals.open("a") as stream:
            stream.write("x")
        if len(self._arrivals.read_text()) < 3:
            os._exit(1)


def rank_of(_: LostOnArrival, worker: Worker) -> int:
    return worker.rank


@pytest.mark.release
@pytest.mark.parametrize("launch", ["ray"], indirect=True)
def test_a_worker_that_is_lost_while_the_function_is_sent_is_replaced(launch: Launch) -> None:
    """Ray Train takes this for a failure of its controller, which it doesn't retry."""
    argument = LostOnArrival(launch.folder / "arrivals")
    assert run_on_workers(rank_of, argument, launch) == [0, 1]


@pytest.mark.release
@pytest.mark.parametrize("launch", ["ray"], indirect=True)
def test_workers_that_do_not_start_in_time_cost_one_line(launch: Launch) -> None:
    ray = Ray(num_workers=2, max_failures=0, start_timeout=0.1)
    with pytest.raises(UserError, match=r"^runs\.name\.ray\.start_timeout: .* in 0\.1 s, though"):
        run_on_workers(sum_and_rank, 10, replace(launch, ray=ray))


def raise_always(error: Exception, worker: Worker) -> None:
    with Path("attempts").open("a") as file:
        file.write("x")
    raise error


@pytest.mark.long
def test_workers_that_keep_failing_are_given_up_with_one_line_and_a_trace_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ray = Ray(num_workers=1, max_failures=1)
    launch = Launch(ray, "runs.name.ray", tmp_path, "torchrun", timeout=60)
    with pytest.raises(WorkersFailedError, match=r"^worker 0: OSError: odd$"):
        run_on_workers(raise_always, OSError("odd\nand long"), launch)
    assert "Traceback (most recent call last)" in capfd.readouterr().err
    assert Path("attempts").read_text() == "xx"


@pytest.mark.parametrize("launch", RAY_IS_SLOW, indirect=True)
def test_an_error_of_code_that_is_raised_again_spends_one_retry(
    launch: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    attempts = launch.folder / "attempts"
    with pytest.raises(UserError) as caught:
        run_on_workers(index_beyond, attempts, launch)
    assert attempts.read_text() == "xx"
    assert str(caught.value) == (
        "IndexError: list index out of range (worker 1, twice in the same way); correct its cause "
        "(the traceback is in the log), and run the same command again"
    )
    assert "[worker 1] IndexError: list index out of range\n" in capfd.readouterr().err
