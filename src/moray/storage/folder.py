"""The state of a run in a folder that all workers share.

A checkpoint is a folder `step-NNNNNNNN`, named after the number of steps done. It is written to a
temporary folder with a manifest, then renamed into place. The temporary folder has a different name
in each attempt, so that files of a dead attempt are never mixed with those of a live one. A
checkpoint is valid if all digests in its manifest match.
"""

import fcntl
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moray.errors import LockedError, UserError
from moray.provenance.manifest import (
    Files,
    damaged_files,
    list_files,
    write_bytes,
    write_listed_manifest,
)
from moray.storage.interface import PREFIX, folder_of, path_of, step_of

_TEMPORARY = ".tmp-"


class FolderRecords:
    """Small files in a folder."""

    poll_seconds = 0.0

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        file = self._folder / name
        # Others may remove it at any time.
        with suppress(FileNotFoundError):
            return file.read_bytes()
        return None

    def write(self, name: str, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self._folder / name, content)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def last_modified(self, name: str) -> float | None:
        file = self._folder / name
        with suppress(FileNotFoundError):
            return file.stat().st_mtime
        return None


class FolderStorage:
    """The state of a run in a folder."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.folder = folder_of(work)

    @property
    def remote(self) -> None:
        return None

    @property
    def run_place(self) -> str:
        return str(self.work.parent)

    @property
    def records(self) -> FolderRecords:
        return FolderRecords(self.work)

    @contextmanager
    def sole_driver(self) -> Iterator[None]:
        self.work.mkdir(parents=True, exist_ok=True)
        with (self.work / "driver.lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise held_lock(str(self.work), json.loads(file.read() or "{}")) from None
            except OSError as error:
                raise UserError(
                    str(self.work),
                    f"this file system has no locks ({error.strerror}), which prevent a run from "
                    "being trained twice at the same time",
                    "choose another ray.storage_path",
                ) from error
            file.truncate(0)
            file.write(json.dumps(this_process()))
            file.flush()
            yield

    @contextmanager
    def sole_writer(self) -> Iterator[None]:
        with (self.work / "writer.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def begin(self, step: int) -> str:
        path = path_of(self.folder, step).with_suffix(f"{_TEMPORARY}{uuid.uuid4().hex[:8]}")
        path.mkdir(parents=True)
        return path.name

    def staging(self, attempt: str) -> Path:
        return self.folder / attempt

    def persist(self, attempt: str, paths: Iterable[Path]) -> Files:
        return list_files(self.staging(attempt), paths)

    def commit(self, step: int, attempt: str, files: Files) -> None:
        write_listed_manifest(self.staging(attempt), files, step=step)
        self._publish(attempt, step)

    def discard(self, attempt: str) -> None:
        shutil.rmtree(self.staging(attempt), ignore_errors=True)

    def adopt(self, step: int, source: Path) -> None:
        attempt = self.begin(step)
        copy = self.staging(attempt)
        shutil.copytree(source, copy, copy_function=_link_or_copy, dirs_exist_ok=True)
        self._publish(attempt, step)

    def steps(self) -> list[int]:
        folders = self.folder.glob(f"{PREFIX}*")
        return sorted(step_of(path) for path in folders if _TEMPORARY not in path.name)

    def damaged_files(self, step: int) -> list[str]:
        return damaged_files(path_of(self.folder, step))

    def fetch(self, step: int) -> Path:
        return path_of(self.folder, step)

    def history_of(self, step: int) -> Path:
        return self.work

    def newest_elsewhere(self) -> str | None:
        glob = f"*/{self.folder.name}/{PREFIX}????????"
        checkpoints = [path for path in self.work.parent.glob(glob) if path.is_dir()]
        return str(max(checkpoints, key=lambda path: path.stat().st_mtime)) if checkpoints else None

    def newest_of_equal_run(self) -> str | None:
        run = self.work.absolute().parent
        glob = f"*/{self.work.name}/{self.folder.name}/{PREFIX}????????"
        checkpoints = [path for path in run.parent.glob(glob) if path.parents[2] != run]
        return str(max(checkpoints, key=step_of)) if checkpoints else None

    def remove(self, step: int) -> None:
        shutil.rmtree(path_of(self.folder, step))

    def remove_uncommitted(self) -> None:
        for path in self.folder.glob(f"{PREFIX}*{_TEMPORARY}*"):
            # A dying worker on another node may still be writing there.
            shutil.rmtree(path, ignore_errors=True)

    def _publish(self, attempt: str, step: int) -> None:
        temporary, final = self.staging(attempt), path_of(self.folder, step)
        _sync(temporary)
        if final.exists():
            # Left by a worker on another node that died late; a valid one would have been resumed
            # from.
            shutil.rmtree(final)
        temporary.rename(final)
        _sync(self.folder)


def _link_or_copy(source: str, target: str) -> None:
    # The files of a checkpoint are never modified.
    try:
        os.link(source, target)
    except OSError:
        # On another disk, or on a file system without hard links.
        shutil.copyfile(source, target)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def this_process() -> dict[str, str | int]:
    """Identifies the holder of a lock to users."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}


def held_lock(place: str, holder: dict[str, str | int]) -> LockedError:
    """The error if another process holds a lock; `holder` is its `this_process`."""
    return LockedError(
        place,
        f"process {holder.get('pid')} on {holder.get('host')} has been training this run "
        f"since {holder.get('since')}",
        "wait for it or stop it",
    )
