"""Atomic checkpoints: written to a temporary folder with a manifest, then renamed into place.

A checkpoint is a folder `step-NNNNNNNN`, named after the number of steps done. The temporary folder
has a different name in each attempt, so that files of a dead attempt are never mixed with those of
a live one. A checkpoint is valid if all digests in its manifest match. Sample order, learning rate
and dropout are functions of the step, so the step is the whole position of a run.
"""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from moray.provenance.manifest import Files, damaged_files, write_listed_manifest

_PREFIX = "step-"


def folder_of(work: Path) -> Path:
    """The checkpoint folder of a work folder."""
    return work / "checkpoints"


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"{_PREFIX}{step:08d}"


def commit(folder: Path, step: int, temporary: Path, files: Files) -> Path:
    """Turn a temporary folder into the checkpoint of a step.

    Args:
        folder: the checkpoint folder.
        step: number of steps done.
        temporary: folder with the files.
        files: what `list_files` returned for them.
    """
    write_listed_manifest(temporary, files, step=step)
    _sync(temporary)
    final = path_of(folder, step)
    if final.exists():
        # Left by a worker on another node that died late; a valid one would have been resumed from.
        shutil.rmtree(final)
    temporary.rename(final)
    _sync(folder)
    return final


def adopt(folder: Path, source: Path) -> None:
    """Copy a checkpoint of another folder into this one, by hard links where possible."""
    temporary = temporary_folder(folder, step_of(source))
    shutil.copytree(source, temporary, copy_function=_link_or_copy, dirs_exist_ok=True)
    _sync(temporary)
    temporary.rename(path_of(folder, step_of(source)))
    _sync(folder)


def _link_or_copy(source: str, target: str) -> None:
    # The files of a checkpoint are never modified.
    try:
        os.link(source, target)
    except OSError:
        # On another disk, or on a file system without hard links.
        shutil.copyfile(source, target)


def temporary_folder(folder: Path, step: int) -> Path:
    """A new empty folder to write a checkpoint into."""
    path = path_of(folder, step).with_suffix(f".tmp-{uuid.uuid4().hex[:8]}")
    path.mkdir(parents=True)
    return path


def newest(folder: Path, skipped: Callable[[Path, list[str]], None]) -> Path | None:
    """The newest valid checkpoint; None if there is none.

    Args:
        folder: the checkpoint folder.
        skipped: called with each newer one that is damaged, and its damaged files.
    """
    for path in reversed(_committed(folder)):
        damaged = damaged_files(path)
        if not damaged:
            return path
        skipped(path, damaged)
    return None


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, damaged or not; 0 if there is none."""
    return max(map(step_of, _committed(folder)), default=0)


def resume_point(folder: Path, skipped: Callable[[Path, list[str]], None]) -> int:
    """The step of the newest valid checkpoint, 0 if there is none; newer damaged ones are removed.

    Otherwise they would count towards the number to keep. Partial checkpoints are removed too.
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
    """The number of steps done when a checkpoint was saved."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def remove_old(folder: Path, keep: int, best: int | None = None) -> None:
    """Remove all but the newest and the best, and partial checkpoints of dead attempts."""
    for path in _committed(folder)[:-keep]:
        if best is None or path != path_of(folder, best):
            shutil.rmtree(path)
    _remove_half_written(folder)


def _remove_half_written(folder: Path) -> None:
    for path in folder.glob(f"{_PREFIX}*.tmp-*"):
        # A dying worker on another node may still be writing there.
        shutil.rmtree(path, ignore_errors=True)


def _committed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if ".tmp-" not in path.name)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
