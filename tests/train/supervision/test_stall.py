"""A training that hangs, in processes of their own, because it ends them."""

import subprocess
import sys
from pathlib import Path

import pytest

from moray.train.supervision.stall import ended_by_stall, forget, stacks

SCRIPT = """
import ctypes, os, sys, threading, time
from pathlib import Path
from moray.train.supervision.stall import ended_by_stall

def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def wait_with_the_interpreter_held():
    ctypes.PyDLL(None).pause()

def go_on(alive, seconds):
    began = time.monotonic()
    while time.monotonic() < began + 1.2 * seconds:
        alive()

work, rank, seconds, body = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
"""
HANGING = """
with ended_by_stall(work, rank, seconds):
    globals()[body]()
print("went on")
"""
WORKING = """
with ended_by_stall(work, rank, seconds) as alive:
    go_on(alive, seconds)
print("went on")
"""
# Of the kernel's, because the one that waits is none of Python's.
THREADS = """
def threads():
    return len(os.listdir("/proc/self/task"))

def more_threads(expected):
    # One that has ended may be listed for a moment.
    deadline = time.monotonic() + 60
    while threads() - before != expected and time.monotonic() < deadline:
        os.sched_yield()
    return threads() - before

before = threads()
try:
    with ended_by_stall(work, rank, seconds) as alive:
        for _ in range(3):
            alive()
        print(more_threads(1))
        if body == "raises":
            raise KeyError
except KeyError:
    print("raised")
print(more_threads(0))
"""


def run(
    script: str, work: Path, seconds: float, body: str = "", rank: int = 0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + script, str(work), str(rank), str(seconds), body],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("body", ["wait_for_a_lock", "wait_with_the_interpreter_held"])
def test_a_worker_that_hangs_ends_and_says_where_it_was(tmp_path: Path, body: str) -> None:
    done = run(HANGING, tmp_path, 0.2, body, rank=12)
    assert (done.returncode, done.stdout) == (1, "")
    found = stacks(tmp_path)
    assert list(found) == [12]
    assert f" in {body}\n" in found[12]
    assert " in <module>\n" in found[12]


def test_a_worker_that_goes_on_is_left_alone_however_long_it_takes(tmp_path: Path) -> None:
    done = run(WORKING, tmp_path, 2)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert stacks(tmp_path) == {}


@pytest.mark.parametrize(("body", "expected"), [("", ["1", "0"]), ("raises", ["1", "raised", "0"])])
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads by /proc")
def test_a_body_that_ends_leaves_nobody_waiting(
    tmp_path: Path, body: str, expected: list[str]
) -> None:
    done = run(THREADS, tmp_path, 600, body)
    assert (done.returncode, done.stdout.split()) == (0, expected), done.stderr


def test_stacks_are_those_of_workers_that_hung_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    for rank in range(12):
        before = set(tmp_path.iterdir())
        with ended_by_stall(tmp_path, rank, 600):
            pass
        (file,) = set(tmp_path.iterdir()) - before
        file.write_text(f"stack of {rank}" if rank != 5 else "")
    expected = [(rank, f"stack of {rank}") for rank in range(12) if rank != 5]
    assert list(stacks(tmp_path).items()) == expected


def test_stacks_of_an_earlier_attempt_go_when_the_next_one_begins(tmp_path: Path) -> None:
    run(HANGING, tmp_path, 0.2, "wait_for_a_lock")
    assert stacks(tmp_path)
    with ended_by_stall(tmp_path, 0, 600):
        assert stacks(tmp_path) == {}


def test_what_is_forgotten_is_the_stacks_alone(tmp_path: Path) -> None:
    run(HANGING, tmp_path, 0.2, "wait_for_a_lock")
    (tmp_path / "history.jsonl").touch()
    assert stacks(tmp_path)
    forget(tmp_path)
    assert stacks(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["history.jsonl"]
    forget(tmp_path)
