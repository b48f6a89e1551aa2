from pathlib import Path

from psutil import Process

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


def test_a_look_reads_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in range(50_000)))
    follower = Follower(path)
    assert len(follower.look()[0]) == 50_000
    assert path.stat().st_size > 10**6
    before = Process().io_counters().read_chars
    for step in range(20):
        with path.open("a") as file:
            file.write(f"{step}\n")
        assert follower.look() == ([f"{step}\n"], False)
    assert Process().io_counters().read_chars - before < 10**5


def test_lines_after_a_checkpoint_are_reported_when_their_place_is_taken(tmp_path: Path) -> None:
    """A resumed run drops them and writes others, perhaps more than there were."""
    path, other = tmp_path / "lines", tmp_path / "other"
    path.write_text("1 at 10:00\n2 at 10:01\n3 at 10:02\n")
    follower = Follower(path)
    follower.look()
    new = ["2 at 11:01\n", "3 at 11:02\n", "4 at 11:03\n"]
    other.write_text("1 at 10:00\n" + "".join(new))
    other.replace(path)
    assert follower.look() == (new, True)
    with path.open("a") as file:
        file.write("5 at 11:04 é\n6")
    assert follower.look() == (["5 at 11:04 é\n"], False)
    path.unlink()
    assert follower.look() == ([], True)
