"""The state of a run in an object store, for workers without a shared folder.

    lease.json                     the lock of the driver, see `leased`
    checkpoints/commits/N.json     fences and manifests of checkpoints, see `Commits`
    checkpoints/data/ATTEMPT/…     files of checkpoints, committed or not
    identity.json, …               records

Each worker writes its files to a folder on its machine, uploads and digests them. The history up to
a checkpoint is one of its files.
"""

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moray.errors import UserError
from moray.extras.object_store.lease import hold_lease
from moray.provenance.manifest import (
    MANIFEST,
    Files,
    damaged_files,
    list_files,
    write_listed_manifest,
)
from moray.storage.interface import Remote, folder_of, name_of
from moray.storage.objects import Objects, open_objects
from moray.storage.transfer import fill_once

Entry = dict[str, Any]

_COMMITS = "checkpoints/commits"
_DATA = "checkpoints/data"
# After a driver died, the same command waits for so many seconds.
_LEASE_SECONDS = 30.0
# A request is seen by so many seconds later; each look costs a request to the store.
_POLL_SECONDS = 2.0
_HISTORY = "history.jsonl"
_FETCHED = ".fetched"


class ObjectRecords:
    """Small files in an object store."""

    poll_seconds = _POLL_SECONDS

    def __init__(self, objects: Objects) -> None:
        self.place = objects.url
        self._objects = objects

    def read(self, name: str) -> bytes | None:
        answer = self._objects.get(name)
        return None if answer is None else answer[0]

    def write(self, name: str, content: bytes) -> None:
        self._objects.put(name, content)

    def remove(self, name: str) -> None:
        self._objects.delete([name])

    def last_modified(self, name: str) -> float | None:
        info = self._objects.head(name)
        return None if info is None else info.last_modified


class ObjectStorage:
    """The state of a run in an object store."""

    def __init__(
        self, work: Path, url: str, token: int = 0, lease_seconds: float = _LEASE_SECONDS
    ) -> None:
        """Open the state of a run.

        Args:
            token: of the driver's lease, for a worker.
            lease_seconds: how long the lock outlives a driver that died.
        """
        self.work = work
        self.folder = folder_of(work)
        self._url = url
        self._token = token
        self._objects = open_objects(url)
        self._commits = Commits(self._objects)
        self._lease_seconds = lease_seconds

    @property
    def remote(self) -> Remote:
        return Remote(self._url, self._token)

    @property
    def run_place(self) -> str:
        return self._url.rpartition("/")[0]

    @property
    def records(self) -> ObjectRecords:
        return ObjectRecords(self._objects)

    @contextmanager
    def sole_driver(self) -> Iterator[None]:
        with hold_lease(self._objects, self._lease_seconds) as self._token:
            self.work.mkdir(parents=True, exist_ok=True)
            try:
                yield
            finally:
                shutil.rmtree(self.work, ignore_errors=True)

    @contextmanager
    def sole_writer(self) -> Iterator[None]:
        self._commits.append_fence(self._token)
        yield

    def begin(self, step: int) -> str:
        # The fence tells later cleaning whose it is.
        attempt = f"{name_of(step)}.{self._commits.fence or 0:08d}-{uuid.uuid4().hex[:8]}"
        self.staging(attempt)
        return attempt

    def staging(self, attempt: str) -> Path:
        folder = self.folder / attempt
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def persist(self, attempt: str, paths: Iterable[Path]) -> Files:
        paths, folder = list(paths), self.staging(attempt)
        files = list_files(folder, paths)
        # The checkpoint that the run was resumed from isn't needed any more.
        for download in self.folder.glob(f"*{_FETCHED}"):
            shutil.rmtree(download, ignore_errors=True)
        for path in paths:
            self._objects.upload(path, f"{_DATA}/{attempt}/{path.relative_to(folder)}")
            path.unlink()
        return files

    def commit(self, step: int, attempt: str, files: Files) -> None:
        history = self.work / _HISTORY
        if history.exists():
            copy = self.staging(attempt) / _HISTORY
            shutil.copyfile(history, copy)
            files = files | self.persist(attempt, [copy])
        number = self._commits.append(
            self._token, step, {"attempt": attempt, "files": dict(sorted(files.items()))}
        )
        for earlier, entry in self._commits.checkpoints().items():
            if entry["step"] == step and earlier < number:
                self._remove(earlier, entry)
        self.discard(attempt)

    def discard(self, attempt: str) -> None:
        shutil.rmtree(self.folder / attempt, ignore_errors=True)

    def adopt(self, step: int, source: Path) -> None:
        attempt = self.begin(step)
        folder = self.staging(attempt)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        paths = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
        self.commit(step, attempt, self.persist(attempt, paths))

    def steps(self) -> list[int]:
        return sorted({entry["step"] for entry in self._commits.checkpoints().values()})

    def damaged_files(self, step: int) -> list[str]:
        # The files are on this machine afterwards.
        return damaged_files(self._download(step)) if step in self.steps() else [MANIFEST]

    def fetch(self, step: int) -> Path:
        folder = self._download(step)
        if damaged := damaged_files(folder):
            raise UserError(
                f"{self._url}/{folder_of(Path())}/{name_of(step)}",
                f"missing or damaged files: {', '.join(damaged)}",
                "run the same command again",
            )
        return folder

    def history_of(self, step: int) -> Path:
        return self._download(step)

    def newest_elsewhere(self) -> str | None:
        run, _, own = self._url.rpartition("/")
        checkpoints = []
        for fingerprint in open_objects(run).folders():
            if fingerprint == own:
                continue
            url = f"{run}/{fingerprint}"
            objects = open_objects(url)
            for entry in Commits(objects).checkpoints().values():
                data = objects.list_objects(f"{_DATA}/{entry['attempt']}/")
                newest = max((file.last_modified for file in data.values()), default=0.0)
                checkpoints.append((newest, f"{url}/checkpoints/{name_of(entry['step'])}"))
        return max(checkpoints)[1] if checkpoints else None

    def newest_of_equal_run(self) -> str | None:
        return None

    def remove(self, step: int) -> None:
        self._commits.check()
        for number, entry in self._commits.checkpoints().items():
            if entry["step"] == step:
                self._remove(number, entry)

    def remove_uncommitted(self) -> None:
        self._commits.check()
        committed = {entry["attempt"] for entry in self._commits.checkpoints().values()}

        def is_leftover(key: str) -> bool:
            attempt = key.split("/")[2]
            # Later workers may be uploading already.
            return attempt not in committed and _fence_of(attempt) <= (self._commits.fence or 0)

        self._objects.delete(filter(is_leftover, self._objects.list_objects(f"{_DATA}/")))
        self._objects.abort_uploads(f"{_DATA}/", is_leftover)

    def _remove(self, number: int, entry: Entry) -> None:
        # First what makes it count.
        self._commits.remove(number)
        self._objects.delete(self._objects.list_objects(f"{_DATA}/{entry['attempt']}/"))

    def _download(self, step: int) -> Path:
        """The files of a checkpoint that are there, whole or not, with its manifest."""
        entries = self._commits.checkpoints().values()
        entry = [entry for entry in entries if entry["step"] == step][-1]
        prefix = f"{_DATA}/{entry['attempt']}"

        def fill(folder: Path) -> None:
            for name in entry["files"]:
                self._objects.download(f"{prefix}/{name}", folder / name)
            write_listed_manifest(folder, entry["files"], step=step)

        return fill_once(self.folder / f"{entry['attempt']}{_FETCHED}", fill)


def _fence_of(attempt: str) -> int:
    """The fence of the worker that began an attempt."""
    return int(attempt.split(".")[1].partition("-")[0])


class Commits:
    """The commits of a run: numbered objects, each created only if absent.

    A worker that is to write checkpoints first appends a fence. From then on, it appends each
    checkpoint's manifest under the number after its own last entry, and nowhere else. Once a later
    worker has appended its fence, that number is taken, so a worker that was cut off and lives on
    can't commit. The store decides it in a single request; nothing happens between a check and a
    write. Fences are never deleted, so that no number becomes free again.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._writer = uuid.uuid4().hex
        self.fence: int | None = None
        self._last = 0
        self._cache: dict[int, Entry] = {}

    def checkpoints(self) -> dict[int, Entry]:
        """The manifests of checkpoints, by number, from the oldest."""
        return {number: entry for number, entry in self._entries().items() if "step" in entry}

    def append_fence(self, token: int) -> None:
        """Shut out all earlier writers.

        Raises:
            UserError: if a driver with a later lease has workers already.
        """
        while True:
            entries = self._entries()
            if any(entry["token"] > token for entry in entries.values()):
                raise self._takeover_error()
            number = max(entries, default=0) + 1
            if self._create(number, {"token": token}):
                self.fence = self._last = number
                return

    def append(self, token: int, step: int, facts: Entry) -> int:
        """Commit a checkpoint; returns the number of its entry.

        Raises:
            UserError: if a later worker has shut this one out; nothing is committed then.
        """
        if not self._create(self._last + 1, {"token": token, "step": step, **facts}):
            raise self._takeover_error()
        self._last += 1
        return self._last

    def check(self) -> None:
        """Make sure that no later worker has shut this one out.

        Raises:
            UserError: if one has.
        """
        if max(self._numbers(), default=0) > self._last:
            raise self._takeover_error()

    def remove(self, number: int) -> None:
        self._objects.delete([_key(number)])

    def _entries(self) -> dict[int, Entry]:
        numbers = self._numbers()
        for number in numbers:
            # Entries never change, but old ones may be removed meanwhile.
            if number not in self._cache and (answer := self._objects.get(_key(number))):
                self._cache[number] = json.loads(answer[0])
        return {number: self._cache[number] for number in numbers if number in self._cache}

    def _numbers(self) -> list[int]:
        names = self._objects.list_objects(f"{_COMMITS}/")
        return sorted(int(name.rpartition("/")[2].removesuffix(".json")) for name in names)

    def _create(self, number: int, entry: Entry) -> bool:
        content = json.dumps({"writer": self._writer, **entry}, indent=2).encode()
        return self._objects.create(_key(number), content) is not None

    def _takeover_error(self) -> UserError:
        return UserError(
            self._objects.url,
            "this run has been taken over by other workers, so these can't save checkpoints any "
            "more",
            "let the others finish; if they are gone, run the same command again",
        )


def _key(number: int) -> str:
    return f"{_COMMITS}/{number:08d}.json"
