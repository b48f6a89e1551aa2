"""Threads beside others, and how processes end."""

import os
import select
import signal
import subprocess
import sys
import threading

import pytest

from moray.background import call_repeatedly, in_thread

CHILD = """
import os, signal, sys
from moray.background import die_with_parent
if sys.argv[2] == "bound":
    die_with_parent()
os.write(int(sys.argv[1]), b"runs")
signal.pause()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], close_fds=False)
print(child.pid, flush=True)
child.wait()
"""


def test_a_function_is_called_again_and_again_until_the_body_ends() -> None:
    calls = list[int]()
    often = threading.Event()

    def call() -> None:
        calls.append(threading.get_ident())
        if len(calls) == 3:
            often.set()

    with call_repeatedly(call, 0.001):
        assert often.wait(60)
    assert threading.get_ident() not in calls
    assert not any(thread.ident in calls for thread in threading.enumerate())


def test_a_function_that_has_raised_is_called_again(capsys: pytest.CaptureFixture[str]) -> None:
    calls = list[int]()
    often = threading.Event()

    def call() -> None:
        calls.append(len(calls))
        if len(calls) == 4:
            often.set()
        raise OSError("gone for now" if len(calls) < 3 else "gone for good")

    with call_repeatedly(call, 0.001):
        assert often.wait(60)
    said = capsys.readouterr().err
    # The same error is said once.
    assert [said.count(f"OSError: gone for {how}\n") for how in ("now", "good")] == [1, 1]


def test_the_body_may_fail() -> None:
    with pytest.raises(KeyError), call_repeatedly(lambda: None, 0.001):
        raise KeyError


def test_a_future_has_what_a_thread_returned() -> None:
    assert in_thread(threading.get_ident).result() != threading.get_ident()


def test_a_future_raises_what_a_thread_raised() -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_thread(fail).result()


def test_a_process_ends_with_its_parent_however_that_ends() -> None:
    for signal_number in (signal.SIGKILL, signal.SIGTERM):
        reader, _ = orphan("bound", signal_number)
        # A pipe ends once nobody holds its other side any more.
        ended, _, _ = select.select([reader], [], [], 30)
        assert ended
        assert os.read(reader, 1) == b""
        os.close(reader)


def test_a_process_that_did_not_ask_outlives_its_parent() -> None:
    reader, child = orphan("free", signal.SIGKILL)
    os.kill(child, 0)
    os.kill(child, signal.SIGKILL)
    assert os.read(reader, 1) == b""
    os.close(reader)


def orphan(how: str, signal_number: int) -> tuple[int, int]:
    """End the parent of a process; gives a pipe that the process writes to, and its number."""
    reader, writer = os.pipe()
    command = [sys.executable, "-c", CHILD, str(writer), how]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command],
        pass_fds=[writer],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert os.read(reader, 4) == b"runs"
    parent.send_signal(signal_number)
    parent.wait()
    parent.stdout.close()
    return reader, child
