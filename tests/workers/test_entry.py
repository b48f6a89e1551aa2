"""The files by which workers and their driver know of each other."""

import multiprocessing
import os
import resource
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from moray.errors import UserError
from moray.workers.entry import (
    BatchCounter,
    FirstFault,
    Worker,
    follow_output,
    run_entry_point,
    show_batches,
)


def test_of_several_faults_the_first_one_stays_until_it_is_cleared(tmp_path: Path) -> None:
    here, elsewhere = FirstFault(tmp_path), FirstFault(tmp_path)
    assert elsewhere.read() is None
    here.record(UserError("a.key", "is wrong", "set it right"))
    elsewhere.record(UserError("b.key", "is wrong too", "set it right"))
    for seen in (here.read(), elsewhere.read()):
        assert str(seen) == "a.key: is wrong; set it right"
    assert [path.name for path in tmp_path.iterdir()] == ["fault.json"]
    here.clear()
    assert elsewhere.read() is None


def test_lines_of_all_workers_are_copied_whole_and_those_of_an_earlier_start_are_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "output-0.txt").write_text("earlier\n")
    with follow_output(tmp_path):
        with (tmp_path / "output-0.txt").open("w") as first:
            first.write("one\nhalf a ")
        with (tmp_path / "output-11.txt").open("wb") as second:
            second.write(b"not \xff text\n")
        with (tmp_path / "output-0.txt").open("a") as first:
            first.write("line\nwithout an end")
    assert sorted(capfd.readouterr().err.splitlines()) == [
        "[worker 0] half a line",
        "[worker 0] one",
        "[worker 0] without an end",
        "[worker 11] not � text",
    ]


def test_the_log_does_not_grow_with_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What was copied once isn't copied again at the end."""
    with follow_output(tmp_path):
        file = tmp_path / "output-0.txt"
        file.write_text("once\n")
        while "once" not in (seen := capfd.readouterr().err):
            os.sched_yield()
    assert (seen + capfd.readouterr().err).count("once") == 1


@pytest.mark.parametrize(("total", "before"), [(3, 0), (7, 4), (None, 0), (None, 4)])
def test_the_batches_of_all_workers_are_shown(
    total: int | None, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, int, int | None, int]] = []

    def progress(items: object, label: str, unit: str, total: int | None, start: int) -> object:
        for item in items:  # type: ignore[attr-defined]
            shown.append((label, item, total, start))
            yield item

    monkeypatch.setattr("moray.workers.entry.progress", progress)
    with show_batches(tmp_path, "evaluate tuned", total, before):
        for rank in (0, 1, 0):
            BatchCounter(tmp_path, rank).add()
        while len(shown) < 3:
            pass
    numbers = range(before + 1, before + 4)
    assert shown == [("evaluate tuned", number, total, before) for number in numbers]


@pytest.mark.parametrize(("device", "current"), [("cuda:3", 3), ("cpu", 0)])
def test_an_entry_point_s_gpu_is_the_current_one_of_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, current: int
) -> None:
    """As in CUDA, each thread has its own, which is the first one at its start."""
    chosen = threading.local()
    monkeypatch.setattr("moray.workers.entry._redirect_output", lambda folder, rank: None)
    monkeypatch.setattr("torch.cuda.set_device", lambda to: setattr(chosen, "index", to.index))
    chosen.index = 1

    def entry_point(argument: str, worker: Worker) -> tuple[str, int]:
        return argument, getattr(chosen, "index", 0)

    worker = Worker(1, 2, torch.device(device))
    assert run_entry_point(entry_point, "x", worker, tmp_path) == [("x", current)]


def _page_faults_of_steps(argument: str, worker: Worker) -> list[int]:
    """Page faults of each of twelve equal steps, which need 128 MB."""

    def step() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**25)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    return [step() for _ in range(12)]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_a_step_takes_memory_that_earlier_ones_have_freed(tmp_path: Path) -> None:
    worker = Worker(0, 1, torch.device("cpu"))
    # In another process, because the setting holds for all of it, and its output is redirected.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        call = process.submit(run_entry_point, _page_faults_of_steps, "", worker, tmp_path)
        ((first, *_, last),) = call.result() or [[0]]
    # glibc keeps a few small remainders before it gives a block of this size again.
    assert last < first / 10
