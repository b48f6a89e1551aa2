"""What reads the history of a trial while it trains, and stops it."""

from pathlib import Path

import pytest

from moray.train.history import HISTORY, History, read_history
from moray.train.supervision.pruning import judged
from moray.train.supervision.requests import Request, prunes_of


def test_a_training_is_asked_to_end_while_it_runs_and_nothing_is_left(tmp_path: Path) -> None:
    requests, seen = prunes_of(tmp_path), list[int]()

    def judge(history: Path) -> bool:
        seen.append(len(list(read_history(history))))
        return seen[-1] >= 2

    history = History(tmp_path, first_step=0)
    with judged(judge, tmp_path / HISTORY, requests):
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
        judged(judge, history, prunes_of(tmp_path)),
    ):
        raise ValueError("lost")
    assert seen[-1] == history
