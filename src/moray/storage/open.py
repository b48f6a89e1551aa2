"""Open the state of a run where the config says it is."""

import hashlib
import uuid
from pathlib import Path
from types import ModuleType

from moray.config import extras
from moray.storage.folder import FolderRecords, FolderStorage
from moray.storage.interface import Records, Remote, Storage
from moray.storage.objects import open_objects
from moray.storage.transfer import scratch


def is_remote(place: str) -> bool:
    """Whether a place is in an object store."""
    return any(place.startswith(f"{scheme}://") for scheme in extras.SCHEMES)


def needed_libraries(place: str) -> tuple[str, ...]:
    """Names of the optional libraries that a place needs."""
    return ("obstore",) if place.startswith("gs://") else ()


def state_of(storage_path: str, run: str, fingerprint: str) -> Storage:
    """The state of a run, for its driver."""
    if not is_remote(storage_path):
        return FolderStorage(Path(storage_path, run, fingerprint))
    # The folder is this start's alone: workers of an earlier one share no file with it.
    work = scratch() / "runs" / f"{fingerprint}-{uuid.uuid4().hex[:8]}"
    return open_storage(work, Remote(f"{storage_path.rstrip('/')}/{run}/{fingerprint}", token=0))


def open_storage(work: Path, remote: Remote | None) -> Storage:
    """The state of a run, for its workers: where `remote` says, or in the work folder."""
    if remote is None:
        return FolderStorage(work)
    storage: Storage = _bucket(remote.url).ObjectStorage(work, remote.url, remote.token)
    return storage


def storage_with(checkpoint: str) -> Storage:
    """The state of the run that a checkpoint belongs to."""
    if not is_remote(checkpoint):
        return FolderStorage(Path(checkpoint).parent.parent)
    url = checkpoint.rstrip("/").rsplit("/", 2)[0]
    work = scratch() / "fetched" / hashlib.sha256(url.encode()).hexdigest()[:16]
    return open_storage(work, Remote(url, token=0))


def open_records(place: str | Path) -> Records:
    """The small files in a folder or below a URL."""
    if not is_remote(str(place)):
        return FolderRecords(Path(place))
    records: Records = _bucket(str(place)).ObjectRecords(open_objects(str(place)))
    return records


def _bucket(url: str) -> ModuleType:
    return extras.part(extras.SCHEMES[url.partition("://")[0]], "bucket")
