"""Open the state of a run where the config says it lies."""

from pathlib import Path

from moray.storage.folder import FolderRecords, FolderStorage
from moray.storage.interface import Records, Storage


def open_storage(work: Path) -> Storage:
    """The state of a run."""
    return FolderStorage(work)


def storage_with(checkpoint: str) -> Storage:
    """The state of the run that a checkpoint belongs to."""
    return FolderStorage(Path(checkpoint).parent.parent)


def open_records(place: str | Path) -> Records:
    """The small files in a folder."""
    return FolderRecords(Path(place))
