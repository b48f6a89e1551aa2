"""What a training is asked for while it runs, by files and by signals."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moray.train.supervision.requests import (
    Request,
    Requests,
    beside_signals,
    prunes_of,
    stopped_by_signals,
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
    with stopped_by_signals(requests, "tuned"):
        assert requests.pending() is Request.NONE
        send(number)
        assert requests.pending() is Request.STOP
    assert capsys.readouterr().err == (
        f"run tuned: {number.name}, saving a checkpoint before stopping; Ctrl-C stops at once\n"
    )


@pytest.mark.parametrize("first", HANDLED)
def test_ctrl_c_after_a_signal_ends_at_once(requests: Requests, first: signal.Signals) -> None:
    with stopped_by_signals(requests, "tuned"):
        send(first)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_sigterm_again_and_again_only_asks(requests: Requests) -> None:
    """Batch systems send it several times; only a person's Ctrl-C is in a hurry."""
    with stopped_by_signals(requests, "tuned"):
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
        with stopped_by_signals(requests, "tuned"):
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
    assert beside_signals(lambda: value) is value


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_beside_signals_a_function_raises_what_it_raises(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        beside_signals(fail)
    assert caught.value is error
    assert "fail" in [entry.name for entry in caught.traceback]


def test_beside_signals_a_library_cannot_take_the_handlers(requests: Requests) -> None:
    """Ray and PyTorch's elastic agent install their own where they can."""

    def take() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    with stopped_by_signals(requests, "tuned"):
        with pytest.raises(ValueError, match="main thread"):
            beside_signals(take)
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

    with stopped_by_signals(requests, "tuned"):
        assert beside_signals(run) is Request.STOP


def test_ctrl_c_twice_ends_though_the_function_never_does(requests: Watched) -> None:
    freed = threading.Event()

    def hang() -> None:
        send(signal.SIGINT)
        assert requests.asked.wait(30)
        send(signal.SIGINT)
        freed.wait()

    with pytest.raises(KeyboardInterrupt), stopped_by_signals(requests, "tuned"):
        beside_signals(hang)
    freed.set()
