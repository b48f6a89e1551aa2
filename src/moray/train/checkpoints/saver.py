"""Write checkpoints in the background of training, and read them.

Tensors are written with PyTorch's distributed checkpointing: each worker writes its part, and any
number of workers can read it. Its `.metadata` is a pickle, from which `MetadataReader` only loads
descriptions of tensors; tensors are read by `torch.load(weights_only=True)`.
"""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from moray.provenance.manifest import Files, list_files
from moray.provenance.space import telling_of_full_disk, try_room
from moray.train.checkpoints import checkpoint
from moray.train.checkpoints.metadata import MetadataReader
from moray.workers.collectives import from_first_worker, gathered, together


class Saver:
    """Saves checkpoints of a run, one at a time, in the background.

    All workers call the same methods in the same order.
    """

    def __init__(self, folder: Path, keep: int, timeout: float) -> None:
        """Prepare to save.

        Args:
            folder: the checkpoint folder.
            keep: number of newest checkpoints to keep.
            timeout: seconds after which workers stop waiting for each other.
        """
        self._folder = folder
        self._keep = keep
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1)
        # A separate group: background collectives must not mix with those of the training.
        self._group = (
            dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
            if dist.is_initialized()
            else None
        )

    def save(self, step: int, state: dict[str, Tensor], best: int | None) -> None:
        """Copy a state, and write it in the background while the training continues.

        Args:
            step: number of steps done.
            state: this worker's part of the state.
            best: a step whose checkpoint is kept, however old it is.
        """
        self.finish()
        copy = BlockingAsyncStager().stage(state)
        name = from_first_worker(lambda: self._temporary_folder(step))
        self._pending = self._thread.submit(self._write, step, copy, self._folder / name, best)

    def finish(self) -> None:
        """Wait until the last checkpoint is committed.

        Raises:
            UserError: if the disk is full; earlier checkpoints are unchanged.
        """
        if self._pending:
            self._pending.result()
            self._pending = None

    def _temporary_folder(self, step: int) -> str:
        with telling_of_full_disk(self._folder):
            return checkpoint.temporary_folder(self._folder, step).name

    def _write(
        self, step: int, state: dict[str, Tensor], temporary: Path, best: int | None
    ) -> None:
        try:
            # A worker that fails must not remove files that another one still reads.
            together(lambda: self._write_tensors(state, temporary), self._group)
            # Each worker lists its own files: one would take long for all, while the others wait.
            mine = together(lambda: self._list_own_files(temporary), self._group)
            files = gathered(mine, self._group)
            # The others must not continue as if it existed.
            together(lambda: self._commit(step, temporary, files, best), self._group)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _write_tensors(self, state: dict[str, Tensor], temporary: Path) -> None:
        with telling_of_full_disk(self._folder):
            try:
                save(
                    state,
                    # The manifest flushes the files to disk.
                    storage_writer=FileSystemWriter(temporary, sync_files=False),
                    process_group=self._group,
                    no_dist=self._group is None,
                )
            except CheckpointException as failed:
                # If one worker fails, it is raised on all of them.
                error, _ = next(iter(failed.failures.values()))
                # PyTorch's writer doesn't report a full disk; this check does, on the worker whose
                # disk it is.
                together(lambda: self._ask_for_room(state), self._group)
                raise error from failed

    def _ask_for_room(self, state: dict[str, Tensor]) -> None:
        with telling_of_full_disk(self._folder):
            try_room(self._folder, sum(value.nbytes for value in state.values()))

    def _list_own_files(self, temporary: Path) -> Files:
        rank = dist.get_rank() if self._group else 0
        paths = list(temporary.glob(f"__{rank}_*"))
        if rank == 0:
            paths.append(temporary / ".metadata")
        with telling_of_full_disk(self._folder):
            return list_files(temporary, paths)

    def _commit(self, step: int, temporary: Path, files: list[Files], best: int | None) -> None:
        if self._group is not None and dist.get_rank() > 0:
            return
        with telling_of_full_disk(self._folder):
            whole = {name: facts for listed in files for name, facts in listed.items()}
            checkpoint.commit(self._folder, step, temporary, whole)
            checkpoint.remove_old(self._folder, self._keep, best)


def read_state(folder: Path, state: dict[str, Tensor], alone: bool = False) -> None:
    """Fill tensors, by name, from a valid checkpoint.

    Args:
        folder: the checkpoint.
        state: tensors of the right shapes, or shards of them.
        alone: whether this worker reads without the others.
    """
    load(
        state,
        storage_reader=MetadataReader(folder),
        no_dist=alone or not dist.is_initialized(),
    )
