"""Following a history with a tracker that breaks, or that it goes back under."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from moray.tracking.following import FINISHED, follow
from moray.tracking.interface import Point, Results, points_of
from moray.train.history import HISTORY, History


class InMemory:
    """A tracker that keeps what it is sent since it was opened, and can break."""

    def __init__(self, faults: int = 0) -> None:
        self.faults = faults
        self.opened_times = 0
        self.steps: list[int] = []
        self.finished = False

    @contextmanager
    def opened(self) -> Iterator["InMemory"]:
        self.opened_times += 1
        self.steps = []
        yield self

    def log(self, points: Sequence[Point]) -> None:
        self.steps += [point.step for point in points]
        if self.faults:
            self.faults -= 1
            raise ConnectionError("the tracker is down")

    def add_results(self, results: Results) -> None:
        raise AssertionError("nobody has results here")

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path, first_step=0)
    made.append(step=0, num_steps=6, note="blocks are compiled")
    for step in (1, 2, 3):
        made.append(step=step, num_steps=6, loss=1 / step)
    return made


def told(word: str) -> Future[str]:
    done: Future[str] = Future()
    done.set_result(word)
    return done


def test_the_figures_of_a_line_are_a_point_and_notes_are_none(history: History) -> None:
    history.append(step=3, num_steps=6, eval_loss=2.0, eval_losses={"a": 1.0, "b": 3.0})
    *_, last = points = list(points_of(history.path.read_text().splitlines()))
    assert [point.step for point in points] == [1, 2, 3, 3]
    assert points[1].figures == {"loss": 0.5}
    assert last.figures == {"eval_loss": 2.0, "eval_losses/a": 1.0, "eval_losses/b": 3.0}
    assert last.time >= points[0].time > 0


@pytest.mark.parametrize(("word", "finished"), [(FINISHED, True), ("", False)])
def test_at_the_end_everything_is_sent(history: History, word: str, finished: bool) -> None:
    tracker = InMemory()
    follow(tracker.opened, history.path, told(word), lambda: None)
    assert (tracker.steps, tracker.finished) == ([1, 2, 3], finished)


def test_after_a_fault_a_tracker_gets_everything_again(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moray.tracking.following._RETRY_SECONDS", 0.0)
    tracker, ending = InMemory(faults=2), Future[str]()
    follow(tracker.opened, history.path, ending, lambda: _end(ending))
    assert (tracker.faults, tracker.steps, tracker.finished) == (0, [1, 2, 3], True)


def _end(ending: Future[str]) -> None:
    if not ending.done():
        ending.set_result(FINISHED)


def test_a_fault_at_the_end_is_not_waited_out(history: History) -> None:
    with pytest.raises(ConnectionError, match="is down"):
        follow(InMemory(faults=1).opened, history.path, told(FINISHED), lambda: None)


def test_a_history_that_goes_back_is_sent_to_the_tracker_opened_anew(tmp_path: Path) -> None:
    history = History(tmp_path, first_step=0)
    for step in (1, 2, 3):
        history.append(step=step, num_steps=6, loss=1.0)
    tracker, ending = InMemory(), Future[str]()

    def confirm() -> None:
        if not ending.done():
            History(tmp_path, first_step=2).append(step=3, num_steps=6, loss=2.0)
            _end(ending)

    follow(tracker.opened, tmp_path / HISTORY, ending, confirm)
    assert (tracker.opened_times, tracker.steps, tracker.finished) == (2, [1, 2, 3], True)
