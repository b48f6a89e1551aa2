"""The first fault of any worker, visible to all workers and the driver.

A worker that is waiting in a collective can't receive messages through the process group. So the
fault is written to a file, in a folder that all of them can access.
"""

import json
import os
import uuid
from contextlib import suppress
from pathlib import Path

from moray.errors import UserError

FAULT = "fault.json"
"""Name of the file."""


class FirstFault:
    """A `UserError` that ends all workers; of several, the first one recorded."""

    def __init__(self, folder: Path) -> None:
        """Use a folder that all workers share."""
        self._file = folder / FAULT

    def record(self, error: UserError) -> None:
        """Record a fault, unless there is one already."""
        written = self._file.with_name(f"{self._file.name}.tmp-{uuid.uuid4().hex[:8]}")
        written.write_text(json.dumps(error.args))
        try:
            # Atomic, and never replaces an earlier fault.
            with suppress(FileExistsError):
                os.link(written, self._file)
        finally:
            written.unlink()

    def found(self) -> UserError | None:
        """The fault, if a worker has recorded one."""
        return UserError(*json.loads(self._file.read_text())) if self._file.exists() else None

    def clear(self) -> None:
        """Remove the fault of an earlier attempt."""
        self._file.unlink(missing_ok=True)
