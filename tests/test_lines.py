from pathlib import Path

from moray.lines import Follower, whole_lines


def test_lines_are_seen_once_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    follower = Follower(path)
    assert follower.look() == ([], False)
    path.write_text("one\ntw")
    assert whole_lines(path) == ["one\n"]
    assert follower.look() == (["one\n"], False)
    path.write_text("one\ntwo\nthree\n")
    assert follower.look() == (["two\n", "three\n"], False)
    assert follower.look() == ([], False)


def test_lines_that_are_gone_or_changed_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("one\ntwo\nthree\n")
    follower = Follower(path)
    follower.look()
    path.write_text("one\nTWO\n")
    assert follower.look() == (["TWO\n"], True)
    assert follower.look() == ([], False)
    path.write_text("one\n")
    assert follower.look() == ([], True)
