"""Checkpoints are whole or not there."""

from pathlib import Path

import pytest

from moray.provenance.manifest import list_files
from moray.train.checkpoints import checkpoint


def write(folder: Path, step: int, content: bytes = b"weights") -> Path:
    temporary = checkpoint.temporary_folder(folder, step)
    (temporary / "model.safetensors").write_bytes(content)
    (temporary / "optimizer.pt").write_bytes(b"state")
    return checkpoint.commit(folder, step, temporary, list_files(temporary, temporary.iterdir()))


def flip(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def newest(folder: Path) -> tuple[Path | None, dict[str, list[str]]]:
    skipped: dict[str, list[str]] = {}
    found = checkpoint.newest(folder, lambda path, names: skipped.update({path.name: names}))
    return found, skipped


def test_the_newest_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    for step in (90, 100, 20):
        write(tmp_path, step)
    found, skipped = newest(tmp_path)
    assert found is not None
    assert checkpoint.step_of(found) == 100
    assert skipped == {}


def test_there_is_none_at_first(tmp_path: Path) -> None:
    assert newest(tmp_path / "nowhere") == (None, {})


def test_one_that_was_not_committed_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, 10)
    (checkpoint.temporary_folder(tmp_path, 20) / "model.safetensors").write_bytes(b"half")
    found, _ = newest(tmp_path)
    assert found is not None
    assert checkpoint.step_of(found) == 10


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", flip),
        ("model.safetensors", truncate),
        ("optimizer.pt", Path.unlink),
        ("manifest.json", Path.unlink),
        ("manifest.json", truncate),
        ("manifest.json", lambda path: path.write_text("")),
        ("manifest.json", lambda path: path.write_text("[]")),
        ("manifest.json", lambda path: path.write_text('{"files": {}}')),
    ],
)
def test_a_damaged_one_is_passed_over_and_named(name: str, damage: object, tmp_path: Path) -> None:
    write(tmp_path, 10)
    path = write(tmp_path, 20)
    assert callable(damage)
    damage(path / name)
    found, skipped = newest(tmp_path)
    assert found is not None
    assert checkpoint.step_of(found) == 10
    assert skipped == {path.name: [name]}


def test_a_damaged_one_of_the_same_step_is_replaced_whole(tmp_path: Path) -> None:
    flip(write(tmp_path, 10) / "model.safetensors")
    (tmp_path / "step-00000010" / "stale").write_bytes(b"of another attempt")
    write(tmp_path, 10, b"again")
    found, skipped = newest(tmp_path)
    assert found is not None
    assert skipped == {}
    assert (found / "model.safetensors").read_bytes() == b"again"
    assert not (found / "stale").exists()


def test_a_run_resumes_from_the_newest_sound_one_and_damaged_newer_ones_go(
    tmp_path: Path,
) -> None:
    for step in (10, 20):
        write(tmp_path, step)
    for step in (30, 40):
        flip(write(tmp_path, step) / "model.safetensors")
    skipped: list[str] = []
    assert checkpoint.resume_point(tmp_path, lambda path, _: skipped.append(path.name)) == 20
    assert skipped == ["step-00000040", "step-00000030"]
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000010", "step-00000020"}


def test_a_run_without_a_sound_one_starts_over(tmp_path: Path) -> None:
    assert checkpoint.resume_point(tmp_path / "nowhere", lambda path, names: None) == 0
    flip(write(tmp_path, 10) / "model.safetensors")
    assert checkpoint.resume_point(tmp_path, lambda path, names: None) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_one_does_not_count_among_those_kept(tmp_path: Path) -> None:
    write(tmp_path, 10)
    flip(write(tmp_path, 30) / "model.safetensors")
    assert checkpoint.resume_point(tmp_path, lambda path, names: None) == 10
    write(tmp_path, 20)
    checkpoint.remove_old(tmp_path, keep=1)
    found, skipped = newest(tmp_path)
    assert found is not None
    assert checkpoint.step_of(found) == 20
    assert skipped == {}


def test_old_ones_and_leftovers_are_removed(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        write(tmp_path, step)
    checkpoint.temporary_folder(tmp_path, 40)
    checkpoint.remove_old(tmp_path, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000020", "step-00000030"}


@pytest.mark.parametrize(
    ("best", "kept"), [(10, [10, 30, 40]), (30, [30, 40]), (40, [30, 40]), (5, [30, 40])]
)
def test_the_best_is_kept_however_old_it_is(best: int, kept: list[int], tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write(tmp_path, step)
    checkpoint.remove_old(tmp_path, keep=2, best=best)
    assert sorted(map(checkpoint.step_of, tmp_path.iterdir())) == kept
