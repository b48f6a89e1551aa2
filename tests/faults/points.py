"""Points of a save at which a process can be killed: SIGKILL by itself, at the next one reached."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint.filesystem as tensors

from moray.provenance import manifest
from moray.storage import folder
from moray.train import history
from moray.train.checkpoint import save

Original = Callable[..., Any]


def kill() -> None:
    """End this process as the kernel does when memory runs out, or a machine when it fails."""
    os.kill(os.getpid(), signal.SIGKILL)


def _before(original: Original, *arguments: Any, **options: Any) -> None:
    kill()


def _after(original: Original, *arguments: Any, **options: Any) -> None:
    original(*arguments, **options)
    kill()


def _before_commit(original: Original, path: Path, target: Path) -> None:
    if target.name == "step-00000004":
        kill()
    original(path, target)


def _after_commit(original: Original, path: Path, target: Path) -> None:
    original(path, target)
    if target.name == "step-00000004":
        kill()


def _half_a_tensor(original: Original, *arguments: Any, **options: Any) -> None:
    """Bytes of it are on their way to the file."""
    writer = arguments[1]
    original(*arguments, **options)
    writer.truncate(writer.tell() // 2)
    writer.flush()
    kill()


def _one_file(original: Original, removed: Path, **options: Any) -> None:
    next(path for path in sorted(removed.iterdir()) if path.is_file()).unlink()
    kill()


# What is reached, in whose place, and how; in the order of a save.
POINTS: dict[str, tuple[Any, str, Original]] = {
    "before the history is on the disk": (history.History, "sync", _before),
    "before the temporary folder": (folder.FolderStorage, "begin", _before),
    "after the temporary folder": (folder.FolderStorage, "begin", _after),
    "before the tensors": (save, "save", _before),
    "in the middle of a file": (tensors, "_write_item", _half_a_tensor),
    "before the list of tensors": (tensors.FileSystemWriter, "finish", _before),
    "before the list of tensors is renamed": (Path, "rename", _before),
    "after the tensors": (save, "save", _after),
    "before the files' fsync": (folder, "list_files", _before),
    "before the manifest": (manifest, "write_bytes", _before),
    "before the folder's fsync": (folder, "_sync", _before),
    "before the rename": (Path, "rename", _before_commit),
    "after the rename": (Path, "rename", _after_commit),
    "before old ones are deleted": (save, "remove_old", _before),
    "while an old one is deleted": (shutil, "rmtree", _one_file),
    "after an old one is deleted": (shutil, "rmtree", _after),
}


def arm(point: str) -> None:
    """From now on, this process doesn't get past a point."""
    where, name, fault = POINTS[point]
    original = getattr(where, name)

    def faulty(*arguments: Any, **options: Any) -> None:
        fault(original, *arguments, **options)

    setattr(where, name, faulty)
