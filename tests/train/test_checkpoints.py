"""Checkpoints are whole or not there, wherever they are."""

from collections.abc import Callable

import pytest
from stored import Place

from moray.train import checkpoints

Change = Callable[[bytes], bytes | None]


def flip(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def gone(content: bytes) -> None:
    return None


def newest(place: Place) -> tuple[int, dict[int, list[str]]]:
    skipped: dict[int, list[str]] = {}
    found = checkpoints.newest(place.opened(), lambda step, names: skipped.update({step: names}))
    return found, skipped


def test_the_newest_is_the_one_of_the_highest_step(place: Place) -> None:
    for step in (90, 100, 20):
        place.write(step)
    assert newest(place) == (100, {})


def test_there_is_none_at_first(place: Place) -> None:
    assert newest(place) == (0, {})


def test_one_that_is_not_there_is_damaged(place: Place) -> None:
    place.write(10)
    assert place.opened().damaged(20) == ["manifest.json"]


def test_one_that_was_not_committed_does_not_count(place: Place) -> None:
    place.write(10)
    place.begin(20)
    assert newest(place) == (10, {})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.safetensors", flip),
        ("model.safetensors", truncate),
        ("optimizer.pt", gone),
    ],
)
def test_a_damaged_one_is_passed_over_and_named(name: str, change: Change, place: Place) -> None:
    place.write(10)
    place.write(20)
    place.change(20, name, change)
    assert newest(place) == (10, {20: [name]})


def test_a_damaged_one_of_the_same_step_is_replaced_whole(place: Place) -> None:
    place.write(10)
    place.change(10, "model.safetensors", flip)
    place.write(10, b"again")
    assert newest(place) == (10, {})
    fetched = place.opened().fetch(10)
    assert (fetched / "model.safetensors").read_bytes() == b"again"


def test_a_run_resumes_from_the_newest_sound_one_and_damaged_newer_ones_go(place: Place) -> None:
    for step in (10, 20, 30, 40):
        place.write(step)
    for step in (30, 40):
        place.change(step, "model.safetensors", flip)
    skipped: list[int] = []
    storage = place.opened()
    assert checkpoints.resume_point(storage, lambda step, _: skipped.append(step)) == 20
    assert skipped == [40, 30]
    assert storage.steps() == [10, 20]


def test_a_run_without_a_sound_one_starts_over(place: Place) -> None:
    assert checkpoints.resume_point(place.opened(), lambda step, names: None) == 0
    place.write(10)
    place.change(10, "model.safetensors", flip)
    assert checkpoints.resume_point(place.opened(), lambda step, names: None) == 0
    assert place.files() == []


def test_a_damaged_one_does_not_count_among_those_kept(place: Place) -> None:
    for step in (10, 30):
        place.write(step)
    place.change(30, "model.safetensors", flip)
    assert checkpoints.resume_point(place.opened(), lambda step, names: None) == 10
    place.write(20)
    checkpoints.remove_old(place.opened(), keep=1)
    assert newest(place) == (20, {})


def test_old_ones_and_leftovers_are_removed(place: Place) -> None:
    for step in (10, 20, 30):
        place.write(step)
    place.begin(40)
    checkpoints.remove_old(place.opened(), keep=2)
    assert place.opened().steps() == [20, 30]
    # Two files each, in folders of the attempts that wrote them.
    assert len(place.files()) == 4


@pytest.mark.parametrize(
    ("best", "kept"), [(10, [10, 30, 40]), (30, [30, 40]), (40, [30, 40]), (5, [30, 40])]
)
def test_the_best_is_kept_however_old_it_is(best: int, kept: list[int], place: Place) -> None:
    for step in (10, 20, 30, 40):
        place.write(step)
    checkpoints.remove_old(place.opened(), keep=2, best=best)
    assert place.opened().steps() == kept
