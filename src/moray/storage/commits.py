"""The commits of a run in an object store: numbered objects, each created only if absent.

A worker that is to write checkpoints first appends a fence. From then on, it appends each
checkpoint's manifest under the number after its own last entry, and nowhere else. Once a later
worker has appended its fence, that number is taken, so a worker that was cut off and lives on
can't commit. The store decides it in a single request; nothing happens between a check and a write.
Fences are never deleted, so that no number becomes free again.
"""

import json
import uuid
from typing import Any

from moray.errors import UserError
from moray.storage.objects import Objects

_FOLDER = "checkpoints/commits"

Entry = dict[str, Any]


class Commits:
    """The entries of a run, by number."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._writer = uuid.uuid4().hex
        self.fence: int | None = None
        self._last = 0
        self._known: dict[int, Entry] = {}

    def checkpoints(self) -> dict[int, Entry]:
        """The manifests of checkpoints, by number, from the oldest."""
        return {number: entry for number, entry in self._entries().items() if "step" in entry}

    def append_fence(self, token: int) -> None:
        """Shut out all earlier writers.

        Args:
            token: of the lease of this worker's driver.

        Raises:
            UserError: if a driver with a later lease has workers already.
        """
        while True:
            entries = self._entries()
            if any(entry["token"] > token for entry in entries.values()):
                raise self._taken_over()
            number = max(entries, default=0) + 1
            if self._created(number, {"token": token}):
                self.fence = self._last = number
                return

    def append(self, token: int, step: int, facts: Entry) -> int:
        """Commit a checkpoint; returns the number of its entry.

        Raises:
            UserError: if a later worker has shut this one out; nothing is committed then.
        """
        if not self._created(self._last + 1, {"token": token, "step": step, **facts}):
            raise self._taken_over()
        self._last += 1
        return self._last

    def check(self) -> None:
        """Make sure that no later worker has shut this one out.

        Raises:
            UserError: if one has.
        """
        if max(self._numbers(), default=0) > self._last:
            raise self._taken_over()

    def remove(self, number: int) -> None:
        """Take a checkpoint back."""
        self._objects.delete([_key(number)])

    def _entries(self) -> dict[int, Entry]:
        numbers = self._numbers()
        for number in numbers:
            # Entries never change, but old ones may be removed meanwhile.
            if number not in self._known and (found := self._objects.get(_key(number))):
                self._known[number] = json.loads(found[0])
        return {number: self._known[number] for number in numbers if number in self._known}

    def _numbers(self) -> list[int]:
        names = self._objects.listed(f"{_FOLDER}/")
        return sorted(int(name.rpartition("/")[2].removesuffix(".json")) for name in names)

    def _created(self, number: int, entry: Entry) -> bool:
        content = json.dumps({"writer": self._writer, **entry}, indent=2).encode()
        return self._objects.create(_key(number), content) is not None

    def _taken_over(self) -> UserError:
        return UserError(
            self._objects.url,
            "this run has been taken over by other workers, so these can't save checkpoints any "
            "more",
            "let the others finish; if they are gone, run the same command again",
        )


def _key(number: int) -> str:
    return f"{_FOLDER}/{number:08d}.json"
