"""What a checkpoint holds, read by PyTorch alone; and runs that end in their middle."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet import losses
from jobs import Make
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from moray.storage.folder import FolderStorage
from moray.storage.interface import folder_of, path_of
from moray.train.checkpoint import keep
from moray.train.checkpoint.save import Saver
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, whole, by name."""
    reader = FileSystemReader(folder)
    listed = reader.read_metadata().state_dict_metadata
    state = {
        name: torch.empty(entry.size)
        for name, entry in listed.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    return state


def last_tensors(job: RunSpec) -> dict[str, Tensor]:
    """All tensors of a job's newest checkpoint."""
    storage = FolderStorage(job.work)
    return tensors_of(storage.fetch(keep.newest_step(storage)))


def are_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two states have the same tensors, to the bit."""
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


def check_same_bits(job: RunSpec, other: RunSpec) -> None:
    """Hold the losses and the newest checkpoint of a job to another's."""
    assert losses(job) == losses(other)
    assert are_equal(last_tensors(job), last_tensors(other))


class CrashError(Exception):
    """The end of a worker, in the middle of a run."""


def train_and_crash(job: RunSpec, worker: Worker, step: int) -> None:
    """Train until the checkpoint of a step is there."""
    finish = Saver.finish

    def crash(saver: Saver) -> None:
        finish(saver)
        if path_of(folder_of(job.work), step).exists():
            raise CrashError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saver, "finish", crash)
        with pytest.raises(CrashError):
            train(job, worker)


def check_resumption(make: Make, worker: Worker, crash_at: int, **settings: Any) -> RunSpec:
    """Hold a job that crashes and goes on to an undisturbed one, which is returned."""
    undisturbed, resumed = (make(name, **settings) for name in ("undisturbed", "resumed"))
    train(undisturbed, worker)
    train_and_crash(resumed, worker, crash_at)
    assert train(resumed, worker)["resumed_from"] == crash_at
    check_same_bits(resumed, undisturbed)
    return undisturbed
