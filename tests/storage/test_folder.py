"""What only a folder has: files that others can put there, and manifests that they can take."""

from pathlib import Path

import pytest
from stored import Place

from moray.storage.folder import FolderRecords
from moray.storage.interface import path_of


@pytest.mark.parametrize(
    "content", [None, b'{"step": 10, "fi', b"", b"[]", b'{"files": {}}'], ids=str
)
def test_a_checkpoint_without_its_manifest_is_damaged(
    content: bytes | None, tmp_path: Path
) -> None:
    place = Place(tmp_path / "state")
    place.write(10)
    place.change(10, "manifest.json", lambda _: content)
    assert place.opened().damaged_files(10) == ["manifest.json"]


def test_a_checkpoint_of_the_same_step_takes_nothing_from_the_one_before(tmp_path: Path) -> None:
    place = Place(tmp_path / "state")
    place.write(10)
    stale = path_of(place.opened().folder, 10) / "stale"
    stale.write_bytes(b"of another attempt")
    place.write(10)
    assert not stale.exists()
    assert place.opened().damaged_files(10) == []


def test_a_record_may_be_removed_while_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a request to stop, which another process fulfils."""
    records = FolderRecords(tmp_path)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    assert records.read("request") is None
    assert records.last_modified("request") is None
