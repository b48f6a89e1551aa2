"""GPUs are counted, not used: the tests name some that needn't exist."""

import multiprocessing
import os
from pathlib import Path

import pytest

from moray.machine import gpus
from moray.workers.launch import reserved_gpus


@pytest.fixture(autouse=True)
def _three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")


def test_a_run_sees_only_what_it_holds_and_all_again_afterwards(tmp_path: Path) -> None:
    with reserved_gpus(2, tmp_path) as held:
        assert held == gpus() == ["0", "1"]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert gpus() == ["0", "1", "2"]
    with reserved_gpus(0, tmp_path):
        assert gpus() == []


def hold(folder: Path, count: int, held: "multiprocessing.Queue[list[str]]", go_on: object) -> None:
    with reserved_gpus(count, folder) as mine:
        held.put(mine)
        go_on.wait()  # type: ignore[attr-defined]


def test_runs_at_the_same_time_get_different_ones_and_wait_for_more(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Queue()
    events = [context.Event() for _ in range(3)]
    runs = [context.Process(target=hold, args=(tmp_path, 1, held, event)) for event in events]
    for run in runs[:2]:
        run.start()
    first = [held.get(timeout=60)[0] for _ in range(2)]
    assert len(set(first)) == 2
    # Needs two, of which one is free: takes none until another is.
    both = context.Process(target=hold, args=(tmp_path, 2, held, events[2]))
    both.start()
    events[0].set()
    runs[0].join()
    assert len(set(held.get(timeout=60))) == 2
    for event in events[1:]:
        event.set()
    runs[1].join()
    both.join()


def test_a_run_that_is_killed_gives_its_gpus_back(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, never = context.Queue(), context.Event()
    run = context.Process(target=hold, args=(tmp_path, 3, held, never))
    run.start()
    assert held.get(timeout=60) == ["0", "1", "2"]
    run.kill()
    run.join()
    with reserved_gpus(3, tmp_path) as mine:
        assert mine == ["0", "1", "2"]
