"""What a user sees of a training, and what it is asked for while it runs."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moray.train.history import HISTORY, History, read_history
from moray.train.supervision import (
    Request,
    Requests,
    ask_judge,
    prunes_of,
    run_outside_main_thread,
    show_progress,
    stop_on_signals,
)

HANDLED = (signal.SIGTERM, signal.SIGINT)


class Watched(Requests):
    """Tells other threads when something was asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked = threading.Event()

    def ask(self, request: Request) -> None:
        super().ask(request)
        self.asked.set()


@pytest.fixture
def requests(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Should the code under test forget it, pytest has its own handlers back."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_nothing_is_asked_for_at_first(requests: Requests) -> None:
    assert requests.pending() is Request.NONE


@pytest.mark.parametrize(("name", "request_"), [("save", Request.SAVE), ("stop", Request.STOP)])
def test_a_request_is_a_file_that_anybody_can_make(
    requests: Requests, tmp_path: Path, name: str, request_: Request
) -> None:
    (tmp_path / name).touch()
    assert requests.pending() is request_
    requests.done(request_)
    assert list(tmp_path.iterdir()) == []
    requests.ask(request_)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_end_wins_over_a_checkpoint_which_is_still_asked_for_afterwards(
    requests: Requests,
) -> None:
    for request in (Request.SAVE, Request.STOP):
        requests.ask(request)
    assert requests.pending() is Request.STOP
    requests.done(Request.STOP)
    assert requests.pending() is Request.SAVE


def test_what_was_asked_for_before_a_time_is_forgotten_and_the_rest_is_not(
    requests: Requests, tmp_path: Path
) -> None:
    requests.forget(before=2000)
    for name, seconds in {"save": 1000, "stop": 3000}.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    requests.forget(before=2000)
    assert [path.name for path in tmp_path.iterdir()] == ["stop"]


def test_what_a_search_asks_a_training_does_not_concern_the_run(tmp_path: Path) -> None:
    run, training = Requests(tmp_path), prunes_of(tmp_path / "fingerprint")
    training.ask(Request.PRUNE)
    assert (run.pending(), training.pending()) == (Request.NONE, Request.PRUNE)
    training.forget(before=2000)
    run.ask(Request.STOP)
    assert (run.pending(), training.pending()) == (Request.STOP, Request.PRUNE)
    training.done(Request.PRUNE)
    assert training.pending() is Request.NONE


def test_a_run_can_be_asked_before_its_folder_is_there(tmp_path: Path) -> None:
    requests = Requests(tmp_path / "state/tuned")
    requests.ask(Request.STOP)
    assert requests.pending() is Request.STOP


def test_asking_and_being_done_twice_is_fine(requests: Requests) -> None:
    for _ in range(2):
        requests.ask(Request.SAVE)
    for _ in range(2):
        requests.done(Request.SAVE)
    assert requests.pending() is Request.NONE


@pytest.mark.parametrize("number", HANDLED)
def test_a_signal_asks_for_the_end_and_costs_one_line(
    requests: Requests, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    with stop_on_signals(requests, "tuned"):
        assert requests.pending() is Request.NONE
        send(number)
        assert requests.pending() is Request.STOP
    assert capsys.readouterr().err == (
        f"run tuned: {number.name}, saving a checkpoint before stopping; Ctrl-C stops at once\n"
    )


@pytest.mark.parametrize("first", HANDLED)
def test_ctrl_c_after_a_signal_ends_at_once(requests: Requests, first: signal.Signals) -> None:
    with stop_on_signals(requests, "tuned"):
        send(first)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_sigterm_again_and_again_only_asks(requests: Requests) -> None:
    """Batch systems send it several times; only a person's Ctrl-C is in a hurry."""
    with stop_on_signals(requests, "tuned"):
        send(signal.SIGINT)
        for _ in range(3):
            send(signal.SIGTERM)
    assert requests.pending() is Request.STOP


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_handlers_before_are_put_back(
    requests: Requests, error: type[BaseException] | None
) -> None:
    got: list[int] = []
    ours = [lambda number, frame: got.append(number) for _ in HANDLED]
    for number, handler in zip(HANDLED, ours, strict=True):
        signal.signal(number, handler)
    try:
        with stop_on_signals(requests, "tuned"):
            assert signal.getsignal(signal.SIGTERM) is not ours[0]
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        assert error is not None
    assert [signal.getsignal(number) for number in HANDLED] == ours
    send(signal.SIGTERM)
    assert got == [signal.SIGTERM]
    assert requests.pending() is Request.NONE


@pytest.mark.parametrize("value", [None, 0, {"steps": 8}])
def test_beside_signals_a_function_returns_what_it_returns(value: object) -> None:
    assert run_outside_main_thread(lambda: value) is value


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_beside_signals_a_function_raises_what_it_raises(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        run_outside_main_thread(fail)
    assert caught.value is error
    assert "fail" in [entry.name for entry in caught.traceback]


def test_beside_signals_a_library_cannot_take_the_handlers(requests: Requests) -> None:
    """Ray and PyTorch's elastic agent install their own where they can."""

    def take() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    with stop_on_signals(requests, "tuned"):
        with pytest.raises(ValueError, match="main thread"):
            run_outside_main_thread(take)
        send(signal.SIGTERM)
    assert requests.pending() is Request.STOP


@pytest.mark.parametrize("number", HANDLED)
def test_a_signal_is_heard_while_the_function_runs(
    requests: Watched, number: signal.Signals
) -> None:
    def run() -> Request:
        send(number)
        assert requests.asked.wait(30)
        return requests.pending()

    with stop_on_signals(requests, "tuned"):
        assert run_outside_main_thread(run) is Request.STOP


def test_ctrl_c_twice_ends_though_the_function_never_does(requests: Watched) -> None:
    freed = threading.Event()

    def hang() -> None:
        send(signal.SIGINT)
        assert requests.asked.wait(30)
        send(signal.SIGINT)
        freed.wait()

    with pytest.raises(KeyboardInterrupt), stop_on_signals(requests, "tuned"):
        run_outside_main_thread(hang)
    freed.set()


LINE = {"num_steps": 40, "learning_rate": 1e-3, "tokens_per_second": 1234.0, "step_seconds": 2.0}


def test_without_a_terminal_there_are_plain_lines_and_not_too_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with show_progress(tmp_path, "tuned"):
        history = History(tmp_path, first_step=0)
        for step in range(1, 41):
            history.append(step=step, loss=3.0, **LINE)
        history.append(step=40, num_steps=40, eval_loss=2.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tuned  step 1/40  loss 3.0000  lr 1.00e-03  tokens/s 1,234  left 1:18"
    assert lines[-1] == "tuned  step 40/40  validation loss 2.5000"
    assert 15 <= len(lines) <= 22


def test_notes_are_reported_as_they_are_and_cost_no_line_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with show_progress(tmp_path, "tuned"):
        history = History(tmp_path, first_step=0)
        history.append(step=0, num_steps=40, note="blocks are compiled")
        history.append(step=1, loss=3.0, **LINE)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tuned  blocks are compiled"
    assert lines[1].startswith("tuned  step 1/40  loss 3.0000")


def test_the_share_of_the_peak_is_shown_where_it_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with show_progress(tmp_path, "tuned"):
        History(tmp_path, first_step=0).append(step=1, loss=3.0, mfu=0.4567, **LINE)
    assert "tokens/s 1,234  mfu 46%  left" in capsys.readouterr().err


ON_A_TERMINAL = """
import json, sys
from pathlib import Path
from moray.train.history import History
from moray.train.supervision import show_progress
work, line = Path(sys.argv[1]), json.loads(sys.argv[2])
with show_progress(work, "tuned"):
    history = History(work, first_step=0)
    history.append(step=0, num_steps=40, note="blocks are compiled")
    history.append(step=10, loss=3.0, **line)
    history.append(step=10, num_steps=40, eval_loss=2.5)
"""


def test_on_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", ON_A_TERMINAL, str(tmp_path), json.dumps(LINE)]
    subprocess.run(command, stderr=theirs, check=True)
    os.close(theirs)
    shown_text = os.read(ours, 65536).decode()
    os.close(ours)
    assert "tuned  blocks are compiled\r\n" in shown_text
    *_, last = shown_text.rstrip().split("\r")
    assert last.startswith("tuned:  25%|")
    assert last.endswith("| 10/40, loss 3.0000, validation 2.5000, left 1:00, tokens/s 1,234")
    assert len(last) <= 80


def test_steps_of_an_earlier_attempt_are_not_told_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = History(tmp_path, first_step=0)
    for step in range(1, 31):
        first.append(step=step, loss=3.0, **LINE)
    with show_progress(tmp_path, "tuned"):
        second = History(tmp_path, first_step=20)
        second.append(step=21, loss=1.0, **LINE)
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["21/40"]


def test_a_training_is_asked_to_end_while_it_runs_and_nothing_is_left(tmp_path: Path) -> None:
    requests, seen = prunes_of(tmp_path), list[int]()

    def judge(history: Path) -> bool:
        seen.append(len(list(read_history(history))))
        return seen[-1] >= 2

    history = History(tmp_path, first_step=0)
    with ask_judge(judge, tmp_path / HISTORY, requests):
        history.append(step=1, eval_loss=1.0)
        history.append(step=2, eval_loss=2.0)
        while requests.pending() is not Request.PRUNE:
            pass
        history.append(step=3, eval_loss=3.0)
    assert requests.pending() is Request.NONE
    # Also what came last.
    assert seen[-1] == 3


def test_the_end_of_a_training_that_fails_is_seen_too(tmp_path: Path) -> None:
    seen: list[Path] = []

    def judge(history: Path) -> bool:
        seen.append(history)
        return False

    history = tmp_path / HISTORY
    with (
        pytest.raises(ValueError, match="lost"),
        ask_judge(judge, history, prunes_of(tmp_path)),
    ):
        raise ValueError("lost")
    assert seen[-1] == history
