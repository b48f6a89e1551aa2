"""Places where the state of a run lies, and ways to damage it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.storage.folder import FolderStorage
from moray.storage.interface import Storage
from moray.storage.paths import path_of


class Place:
    """A folder; see `BucketPlace` for the same in an object store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def opened(self) -> Storage:
        """The state, as another process finds it."""
        return FolderStorage(self.folder)

    @contextmanager
    def written(self) -> Iterator[Storage]:
        """The state, as its writer finds it."""
        self.folder.mkdir(exist_ok=True)
        storage = self.opened()
        with storage.sole_writer():
            yield storage

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
        with self.written() as storage:
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
