"""Places where the state of a run lies, and ways to damage it or to hold its lock."""

import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from moray.config import extras
from moray.storage.folder import FolderStorage
from moray.storage.interface import Storage, path_of
from moray.storage.objects import open_objects


class Place:
    """A folder; see `BucketPlace` for the same in an object store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def opened(self) -> Storage:
        """The state, as the next writer finds it."""
        return FolderStorage(self.folder)

    def change(self, step: int, name: str, change: Callable[[bytes], bytes | None]) -> None:
        """Change a file of a checkpoint; None removes it."""
        file = path_of(self.opened().folder, step) / name
        content = change(file.read_bytes())
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)

    def files(self) -> list[str]:
        """The files of checkpoints, committed or not, without manifests."""
        found = self.opened().folder.rglob("*")
        return sorted(str(path) for path in found if path.is_file() and path.suffix != ".json")

    def begin(self, step: int) -> tuple[Storage, str, list[Path]]:
        """Write the files of a checkpoint, and don't commit it."""
        storage = self.opened()
        attempt = storage.begin(step)
        paths = [storage.staging(attempt) / name for name in ("model.safetensors", "optimizer.pt")]
        for path in paths:
            path.write_bytes(b"state")
        return storage, attempt, paths

    def write(self, step: int, content: bytes = b"weights") -> None:
        """Write a checkpoint."""
        storage, attempt, paths = self.begin(step)
        paths[0].write_bytes(content)
        storage.commit(step, attempt, storage.persist(attempt, paths))


class BucketPlace(Place):
    """An object store, which each process reaches from a folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url

    def storage(self, token: int = 1, lease_seconds: float = 2.0) -> Storage:
        """The state, as any process finds it."""
        folder = self.folder / uuid.uuid4().hex
        bucket = extras.part("object_store", "bucket")
        storage: Storage = bucket.ObjectStorage(folder, self.url, token, lease_seconds)
        return storage

    def opened(self) -> Storage:
        storage = self.storage()
        with storage.sole_writer():
            return storage

    def change(self, step: int, name: str, change: Callable[[bytes], bytes | None]) -> None:
        objects = open_objects(self.url)
        (key,) = (key for key in self.files() if f"/step-{step:08d}." in key and key.endswith(name))
        found = objects.get(key)
        assert found is not None
        content = change(found[0])
        if content is None:
            objects.delete([key])
        else:
            objects.put(key, content)

    def files(self) -> list[str]:
        return list(open_objects(self.url).list_objects("checkpoints/data/"))


def holder(program: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """A process that holds a lock: a program that prints `held` and waits for its input's end."""
    started = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "held\n"
    return started
