"""Pools call a function on items in any order, and have its results in theirs."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleet import until

from moray import machine
from moray.background import in_thread
from moray.config.schema.sections import Ray
from moray.errors import UserError
from moray.workers import pool as pools
from moray.workers.cluster import connect_for_tasks
from moray.workers.pool import TOKENIZE, Pool, RayTasks, Threads, open_pool

PATH = "runs.x.ray"


def execution(**keys: Any) -> dict[str, Any]:
    return {"run": "x", "cores": None, "launcher": "ray", "ray": {"address": "local", **keys}}


@pytest.fixture(scope="module")
def tasks() -> Iterator[RayTasks]:
    import ray

    with connect_for_tasks(Ray(), PATH, machine.cores()) as num_cpus:
        assert num_cpus == machine.cores() == ray.cluster_resources()["CPU"]
        yield RayTasks(num_cpus, 0)


@pytest.fixture(params=["threads", "tasks"])
def pool(request: pytest.FixtureRequest) -> Pool:
    if request.param == "threads":
        return Threads(8)
    made: RayTasks = request.getfixturevalue("tasks")
    return made


def test_results_come_in_the_order_of_the_items(pool: Pool) -> None:
    def square(number: int) -> tuple[int, Any]:
        return number, np.full(2**18, number) ** 2

    results = pool.map(square, range(40))
    for number, (item, values) in enumerate(results):
        assert item == number
        assert (values == number**2).all()
    assert number == 39


def test_few_items_are_taken_before_results_are(pool: Pool) -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    def itself(number: int) -> int:
        return number

    results = pool.map(itself, items())
    assert next(results) == 0
    first = len(taken)
    assert first <= max(8, 2 * machine.cores())
    assert next(results) == 1
    assert len(taken) == first + 1
    assert [*results] == [*range(2, 1000)]


def test_an_error_is_that_of_the_function(pool: Pool) -> None:
    def refuse(number: int) -> int:
        if number == 5:
            raise UserError("here", f"got {number}", "choose another")
        return number

    results = pool.map(refuse, range(100))
    assert [next(results) for _ in range(5)] == [*range(5)]
    with pytest.raises(UserError, match=r"^here: got 5; choose another$") as caught:
        next(results)
    assert type(caught.value) is UserError


def test_tasks_run_in_other_processes_which_keep_the_function(
    tasks: RayTasks, tmp_path: Path
) -> None:
    class Costly:
        """Says where it was unpickled."""

        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def __reduce__(self) -> Any:
            return partial(unpickle, self.folder), ()

        def __call__(self, number: int) -> int:
            return os.getpid()

    def unpickle(folder: Path) -> Costly:
        (folder / f"{os.getpid()}-{len([*folder.iterdir()])}").touch()
        return Costly(folder)

    processes = {*tasks.map(Costly(tmp_path), range(50))}
    assert os.getpid() not in processes
    assert len(processes) == len([*tmp_path.iterdir()]) <= machine.cores()


def test_tasks_that_wait_for_a_cpu_say_so(
    tasks: RayTasks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And not if their first result is there in time."""
    import ray

    monkeypatch.setattr(pools, "_SECONDS_BEFORE_LINE", 0.1)
    go_on = tmp_path / "go on"

    def occupy() -> None:
        # The processes of tasks don't know this folder's modules.
        import time

        while not go_on.exists():
            time.sleep(0.05)

    occupied = ray.remote(num_cpus=machine.cores())(occupy).remote()
    until(lambda: ray.available_resources().get("CPU", 0) < 1)
    said = []

    def look() -> bool:
        said.append(capsys.readouterr().err)
        return any("no task has ended in 0.1 s: all CPUs" in text for text in said)

    waiting = in_thread(lambda: [*tasks.map(abs, [-1, -2])])
    until(look)
    go_on.touch()
    assert waiting.result() == [1, 2]
    ray.get(occupied)
    monkeypatch.setattr(pools, "_SECONDS_BEFORE_LINE", 60)
    assert [*tasks.map(abs, [-1])] == [1]
    assert "no task" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cores", "size", "given"),
    [
        (64, 2**20, execution()),
        (4, 2**40, execution()),
        (64, 2**40, None),
        (64, 2**40, execution() | {"launcher": "torchrun"}),
        (64, 2**40, execution(address="10.0.0.1:6379") | {"launcher": "torchrun"}),
        (64, 2**40, execution() | {"cores": 4}),
    ],
    ids=[
        "small data",
        "few cores",
        "no run",
        "torchrun",
        "torchrun on a cluster",
        "few cores given",
    ],
)
def test_ray_is_not_started_without_need_or_against_the_launcher(
    cores: int, size: int, given: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: cores)
    with open_pool(given, TOKENIZE, size) as pool:
        assert isinstance(pool, Threads)
        before = {*threading.enumerate()}
        assert [*pool.map(abs, [-1, 2])] == [1, 2]
        assert {*threading.enumerate()} <= before


def test_a_cluster_that_does_not_answer_is_an_error_of_its_key() -> None:
    unused = execution(address="127.0.0.1:9")
    with (
        pytest.raises(UserError, match=r"^runs\.x\.ray\.address: no Ray cluster answers"),
        open_pool(unused, TOKENIZE, TOKENIZE.bytes_worth_ray),
    ):
        pass
