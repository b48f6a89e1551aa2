"""Save checkpoints in the background of training.

Tensors are written with PyTorch's distributed checkpointing: each worker writes its part, and any
number of workers can read it, see `load`.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_saver import save

from moray.provenance.manifest import Files
from moray.provenance.space import explain_full_disk, try_room
from moray.storage.interface import Storage
from moray.train.checkpoint.keep import remove_old
from moray.train.optimizer import Moment, as_saved
from moray.workers.collectives import Value, from_first_worker, gather, together


class Saver:
    """Saves checkpoints of a run, one at a time, in the background.

    All workers call the same methods in the same order.
    """

    def __init__(self, storage: Storage, keep: int, timeout: float) -> None:
        """Prepare to save; workers stop waiting for each other after so many seconds."""
        self._storage = storage
        self._keep = keep
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1)
        # A separate group: background collectives must not mix with those of the training.
        self._group = (
            dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
            if dist.is_initialized()
            else None
        )

    def save(self, step: int, state: Mapping[str, Tensor | Moment], best: int | None) -> None:
        """Copy this worker's part of a state, and write it in the background of the training.

        Args:
            best: a step whose checkpoint is kept, however old it is.
        """
        self.finish()
        # One by one: main memory has no room for all moments in fp32 twice.
        stage = BlockingAsyncStager().stage
        copy = {name: stage({name: as_saved(value)})[name] for name, value in state.items()}
        attempt = from_first_worker(lambda: self._begin(step))
        self._pending = self._thread.submit(self._write, step, copy, attempt, best)

    def finish(self) -> None:
        """Wait until the last checkpoint is committed.

        Raises:
            UserError: if the disk is full; earlier checkpoints are unchanged.
        """
        if self._pending:
            self._pending.result()
            self._pending = None

    def _begin(self, step: int) -> str:
        with explain_full_disk(self._storage.folder):
            return self._storage.begin(step)

    def _write(self, step: int, state: dict[str, Tensor], attempt: str, best: int | None) -> None:
        try:
            temporary = self._storage.staging(attempt)
            # A worker that fails must not remove files that another one still reads.
            self._together(lambda: self._write_tensors(state, temporary))
            # Each worker digests its own files: one would take long for all, while the others wait.
            mine = self._together(lambda: self._persist_own_files(attempt, temporary))
            files = gather(mine, self._group)
            # The others must not continue as if it existed.
            self._together(lambda: self._commit(step, attempt, files, best))
        except BaseException:
            self._storage.discard(attempt)
            raise

    def _together(self, make: Callable[[], Value]) -> Value:
        """Call a function on all workers; a full disk is a fault of all."""

        def call() -> Value:
            with explain_full_disk(self._storage.folder):
                return make()

        return together(call, self._group)

    def _write_tensors(self, state: dict[str, Tensor], temporary: Path) -> None:
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
            size = sum(value.nbytes for value in state.values())
            self._together(lambda: try_room(self._storage.folder, size))
            raise error from failed

    def _persist_own_files(self, attempt: str, temporary: Path) -> Files:
        rank = dist.get_rank() if self._group else 0
        paths = list(temporary.glob(f"__{rank}_*"))
        if rank == 0:
            paths.append(temporary / ".metadata")
        return self._storage.persist(attempt, paths)

    def _commit(self, step: int, attempt: str, files: list[Files], best: int | None) -> None:
        if self._group is not None and dist.get_rank() > 0:
            return
        whole = {name: facts for listed in files for name, facts in listed.items()}
        self._storage.commit(step, attempt, whole)
        remove_old(self._storage, self._keep, best)
