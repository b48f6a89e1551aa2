"""What only a folder has: files that others can put there, and manifests that they can take."""

from pathlib import Path

from stored import Place

from moray.storage.paths import path_of


def test_a_checkpoint_without_its_manifest_is_damaged(tmp_path: Path) -> None:
    place = Place(tmp_path / "state")
    place.write(10)
    place.change(10, "manifest.json", lambda content: None)
    assert place.opened().damaged(10) == ["manifest.json"]


def test_a_checkpoint_of_the_same_step_takes_nothing_from_the_one_before(tmp_path: Path) -> None:
    place = Place(tmp_path / "state")
    place.write(10)
    stale = path_of(place.opened().folder, 10) / "stale"
    stale.write_bytes(b"of another attempt")
    place.write(10)
    assert not stale.exists()
    assert place.opened().damaged(10) == []
