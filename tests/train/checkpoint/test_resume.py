"""Checkpoints are whole or not there, wherever they are."""

from collections.abc import Callable

import pytest
from stored import Place

from moray.train.checkpoint import keep, resume

Change = Callable[[bytes], bytes | None]


def flip(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def gone(content: bytes) -> None:
    return None


def resumed(place: Place) -> tuple[int, list[str]]:
    """The step that a run resumes from, and the notes on damaged checkpoints."""
    notes = list[str]()
    return resume.resume_point(place.opened(), notes), notes


def test_the_newest_is_the_one_of_the_highest_step(place: Place) -> None:
    assert resumed(place) == (0, [])
    for step in (90, 100, 20):
        place.write(step)
    assert resumed(place) == (100, [])


def test_one_that_is_not_there_is_damaged(place: Place) -> None:
    place.write(10)
    assert place.opened().damaged_files(20) == ["manifest.json"]


def test_one_that_was_not_committed_does_not_count(place: Place) -> None:
    place.write(10)
    place.begin(20)
    assert place.opened().steps() == [10]
    assert resumed(place) == (10, [])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.safetensors", flip),
        ("model.safetensors", truncate),
        ("optimizer.pt", gone),
    ],
)
def test_damaged_ones_are_passed_over_named_and_removed(
    name: str, change: Change, place: Place
) -> None:
    for step in (10, 20, 30, 40):
        place.write(step)
    for step in (30, 40):
        place.change(step, name, change)
    notes = [f"skipped checkpoint step-000000{step}: damaged {name}" for step in (40, 30)]
    assert resumed(place) == (20, notes)
    assert place.opened().steps() == [10, 20]


def test_a_damaged_one_of_the_same_step_is_replaced_whole(place: Place) -> None:
    place.write(10)
    place.change(10, "model.safetensors", flip)
    place.write(10, b"again")
    assert place.opened().damaged_files(10) == []
    fetched = place.opened().fetch(10)
    assert (fetched / "model.safetensors").read_bytes() == b"again"


def test_a_run_without_a_sound_one_starts_over(place: Place) -> None:
    place.write(10)
    place.change(10, "model.safetensors", flip)
    assert resumed(place)[0] == 0
    assert place.files() == []


def test_old_ones_and_leftovers_are_removed(place: Place) -> None:
    for step in (10, 20, 30):
        place.write(step)
    place.begin(40)
    keep.remove_old(place.opened(), keep=2)
    assert place.opened().steps() == [20, 30]
    # Two files each, in folders of the attempts that wrote them.
    assert len(place.files()) == 4


@pytest.mark.parametrize(
    ("best", "kept"), [(10, [10, 30, 40]), (30, [30, 40]), (40, [30, 40]), (5, [30, 40])]
)
def test_the_best_is_kept_however_old_it_is(best: int, kept: list[int], place: Place) -> None:
    for step in (10, 20, 30, 40):
        place.write(step)
    keep.remove_old(place.opened(), keep=2, best=best)
    assert place.opened().steps() == kept
