"""Checkpoints that are whole or not there: written aside, listed, then renamed into place.

A checkpoint is a folder `step-NNNNNNNN`: the number of steps done. What it is written as until
the rename has another name in each attempt, so that a dead attempt's leftovers are never merged
with a live one's. A checkpoint counts if all digests of its manifest hold; because sample order,
learning rate and dropout are functions of the step, the step is all the position there is.
"""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from moray.provenance.manifest import Files, damaged_files, write_listed_manifest

_PREFIX = "step-"


def folder_of(work: Path) -> Path:
    """Where the checkpoints of a work folder lie."""
    return work / "checkpoints"


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"{_PREFIX}{step:08d}"


def commit(folder: Path, step: int, temporary: Path, files: Files) -> Path:
    """Make what lies in `temporary` the checkpoint of a step.

    Args:
        folder: where checkpoints lie.
        step: how many steps are done.
        temporary: holds the files.
        files: what `list_files` says of them.
    """
    write_listed_manifest(temporary, files, step=step)
    _sync(temporary)
    final = path_of(folder, step)
    if final.exists():
        # Of a worker elsewhere that was late to die: a sound one would have been resumed from.
        shutil.rmtree(final)
    temporary.rename(final)
    _sync(folder)
    return final


def adopt(folder: Path, source: Path) -> None:
    """Make a checkpoint of another folder one of this folder, without writing its tensors again."""
    temporary = temporary_folder(folder, step_of(source))
    shutil.copytree(source, temporary, copy_function=_link_or_copy, dirs_exist_ok=True)
    _sync(temporary)
    temporary.rename(path_of(folder, step_of(source)))
    _sync(folder)


def _link_or_copy(source: str, target: str) -> None:
    # The files of a checkpoint are never written to again.
    try:
        os.link(source, target)
    except OSError:
        # On another disk, or a file system without links.
        shutil.copyfile(source, target)


def temporary_folder(folder: Path, step: int) -> Path:
    """A new empty folder to write a checkpoint into."""
    path = path_of(folder, step).with_suffix(f".tmp-{uuid.uuid4().hex[:8]}")
    path.mkdir(parents=True)
    return path


def newest(folder: Path, skipped: Callable[[Path, list[str]], None]) -> Path | None:
    """The newest checkpoint whose manifest holds.

    Args:
        folder: where checkpoints lie.
        skipped: told of each newer one that is damaged, and its damaged files.
    """
    for path in reversed(_committed(folder)):
        damaged = damaged_files(path)
        if not damaged:
            return path
        skipped(path, damaged)
    return None


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, sound or not; 0 if there is none."""
    return max(map(step_of, _committed(folder)), default=0)


def resume_point(folder: Path, skipped: Callable[[Path, list[str]], None]) -> int:
    """The step of the newest sound checkpoint, 0 if there is none; damaged newer ones go.

    They would count among those that are kept. What dead attempts left half-written goes too.
    """
    _remove_half_written(folder)
    found = newest(folder, skipped)
    step = step_of(found) if found else 0
    remove_from(folder, step + 1)
    return step


def remove_from(folder: Path, step: int) -> None:
    """Remove the checkpoints of a step and of later ones."""
    for path in _committed(folder):
        if step_of(path) >= step:
            shutil.rmtree(path)


def step_of(checkpoint: Path) -> int:
    """How many steps were done when a checkpoint was taken."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def remove_old(folder: Path, keep: int, best: int | None = None) -> None:
    """Remove all but the newest and the best, and what dead attempts left half-written."""
    for path in _committed(folder)[:-keep]:
        if best is None or path != path_of(folder, best):
            shutil.rmtree(path)
    _remove_half_written(folder)


def _remove_half_written(folder: Path) -> None:
    for path in folder.glob(f"{_PREFIX}*.tmp-*"):
        # A dying worker elsewhere may still write there.
        shutil.rmtree(path, ignore_errors=True)


def _committed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if ".tmp-" not in path.name)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
