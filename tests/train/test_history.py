"""The history over crashes."""

from pathlib import Path

from moray.train.history import HISTORY, History, read_history


def test_a_resumed_run_forgets_the_steps_behind_its_checkpoint(tmp_path: Path) -> None:
    first = History(tmp_path, first_step=0)
    for step in range(1, 6):
        first.append(step=step, loss=float(step))
    second = History(tmp_path, first_step=3)
    second.append(step=4, loss=40.0)
    lines = list(read_history(tmp_path / HISTORY))
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1), (2, 2), (3, 3), (4, 40)]


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / HISTORY
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert list(read_history(path)) == [{"step": 1}]
    History(tmp_path, first_step=2).append(step=3)
    assert list(read_history(path)) == [{"step": 1}, {"step": 3}]
