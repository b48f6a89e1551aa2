"""The interface between training and the place where the state of a run lies."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from moray.provenance.manifest import Files

PREFIX = "step-"


class Records(Protocol):
    """Small files of a run, by name.

    Attributes:
        poll_seconds: how long to wait between two looks for a change.
    """

    place: str
    poll_seconds: float

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it doesn't exist."""

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file, atomically."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def last_modified(self, name: str) -> float | None:
        """When a file was written, in seconds since the epoch; None if it doesn't exist."""


@dataclass(frozen=True)
class Remote:
    """The address of the state of a run for workers; the token is that of the driver's lease."""

    url: str
    token: int


class Storage(Protocol):
    """The state of a run: its checkpoints, which are whole or not there, its records, its locks.

    A checkpoint is written as an attempt: `begin` on one worker; then, on each worker, files in
    `staging` and `persist`; then `commit` or `discard` on one worker.

    Attributes:
        work: folder on this machine for what the run writes while it is under way: history,
            output, faults.
        folder: folder on this machine that checkpoints are written to.
    """

    work: Path
    folder: Path

    @property
    def remote(self) -> Remote | None:
        """The address of the state for workers; None if it is in the work folder."""

    @property
    def run_place(self) -> str:
        """The folder or URL with the states of the run, by fingerprint."""

    @property
    def records(self) -> Records:
        """Small files that outlive the processes of a run."""

    def sole_driver(self) -> AbstractContextManager[None]:
        """Lock the run for this driver during the body.

        Raises:
            UserError: if another driver has the lock, naming it; or if the storage has no locks.
        """

    def sole_writer(self) -> AbstractContextManager[None]:
        """Keep workers of earlier attempts from changing the run during the body.

        Raises:
            UserError: if the driver of this worker has lost its lock to another one.
        """

    def begin(self, step: int) -> str:
        """Begin a checkpoint of a step; returns the name of the attempt."""

    def staging(self, attempt: str) -> Path:
        """The folder on this machine for the files of an attempt."""

    def persist(self, attempt: str, paths: Iterable[Path]) -> Files:
        """Make files of an attempt durable; returns their sizes and SHA-256."""

    def commit(self, step: int, attempt: str, files: Files) -> None:
        """Turn an attempt into the checkpoint of a step.

        Args:
            attempt: what `begin` returned.
            files: what `persist` returned, on all workers.

        Raises:
            UserError: if another driver or a later attempt has taken the run over.
        """

    def discard(self, attempt: str) -> None:
        """Remove the files of an attempt on this machine."""

    def adopt(self, step: int, source: Path) -> None:
        """Copy a checkpoint that `fetch` of another run has returned into this one."""

    def steps(self) -> list[int]:
        """The steps with a checkpoint, damaged or not, from the oldest."""

    def damaged_files(self, step: int) -> list[str]:
        """The missing or damaged files of a checkpoint."""

    def fetch(self, step: int) -> Path:
        """The checkpoint of a step as a folder on this machine."""

    def history_of(self, step: int) -> Path:
        """A folder on this machine with the history up to a checkpoint; it may have later lines."""

    def newest_elsewhere(self) -> str | None:
        """The place of the run's newest checkpoint under another fingerprint; None without any."""

    def newest_of_equal_run(self) -> str | None:
        """The place of the last checkpoint of another run with this fingerprint; None without any.

        In an object store there is none: to look for it costs requests for each run there.
        """

    def remove(self, step: int) -> None:
        """Remove a checkpoint."""

    def remove_uncommitted(self) -> None:
        """Remove the files of attempts that were never committed."""


def folder_of(work: Path) -> Path:
    """The checkpoint folder of a work folder."""
    return work / "checkpoints"


def name_of(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"{PREFIX}{step:08d}"


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / name_of(step)


def step_of(checkpoint: Path) -> int:
    """The number of steps done when a checkpoint was saved."""
    return int(checkpoint.name.removeprefix(PREFIX))
