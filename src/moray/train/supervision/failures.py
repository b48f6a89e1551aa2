"""From what ended the workers to a line that says what to do.

A failure of a worker is tried again, as often as `ray.max_failures` allows, since it may be the
machine's. So the worker raises it as it is, and leaves its meaning in a file for the driver, which
tells it when no try is left.
"""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moray.errors import UserError, first_line
from moray.provenance.manifest import write_json
from moray.provenance.space import full_disk, of_full_disk
from moray.train.checkpoints.checkpoint import folder_of, newest_step
from moray.train.history import HISTORY, read_history
from moray.train.job import Job
from moray.train.supervision import stall
from moray.workers.launch import WorkersFailedError
from moray.workers.memory import is_out_of_memory
from moray.workers.worker import Worker

_MEANING = "failure.json"

_NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


@contextmanager
def explained(job: Job, worker: Worker) -> Iterator[None]:
    """Leave the meaning of a failure in the body for the driver, in place of earlier attempts'."""
    if worker.rank == 0:
        (job.work / _MEANING).unlink(missing_ok=True)
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if meaning := _meaning(error, job, worker):
            # A disk that is full may not even take this.
            with suppress(OSError):
                write_json(job.work / _MEANING, meaning.args)
        raise


def _meaning(error: Exception, job: Job, worker: Worker) -> UserError | None:
    if of_full_disk(error):
        return full_disk(job.work)
    if not is_out_of_memory(error):
        return None
    rows = job.settings.micro_batch_size
    # Python's own has often no text.
    text = first_line(error)
    other = "set train.gradient_checkpointing: true or train.strategy: fsdp2"
    return UserError(
        "train.micro_batch_size",
        f"micro-batches of {rows} don't fit in the memory of worker {worker.rank} "
        f"({worker.device.type}: {text})",
        f"lower it, or {other}" if rows > 1 else other,
    )


def forget(work: Path) -> None:
    """Remove what earlier starts of a run have left."""
    (work / _MEANING).unlink(missing_ok=True)
    stall.forget(work)


def meaning_of(failed: WorkersFailedError, job: Job, run: str, max_failures: int) -> UserError:
    """What the user is told of a run whose workers failed for good; stacks go to the log."""
    file = job.work / _MEANING
    if file.exists():
        return UserError(*json.loads(file.read_text()))
    if any(text in str(failed) for text in _NO_ROOM):
        # It left no meaning, because that takes room too.
        return full_disk(job.work)
    if hung := stall.stacks(job.work):
        for rank, text in hung.items():
            print(f"worker {rank} hung here:\n{text}", file=sys.stderr)
        workers = ", ".join(map(str, hung))
        lines = read_history(job.work / HISTORY)
        last = max((line["step"] for line in lines), default=0)
        return UserError(
            f"runs.{run}.train.stall_timeout",
            f"got no step within {job.settings.stall_timeout:g} s on workers {workers}, the last "
            f"known one is {last}",
            "see where they hung in the log; raise it if steps take that long",
        )
    saved = newest_step(folder_of(job.work))
    return UserError(
        f"runs.{run}.ray.max_failures",
        f"got more than {max_failures} failures of workers, the last: {failed}",
        "see the log; a worker that was killed may have run out of memory: lower "
        f"train.micro_batch_size then; the same command goes on from step {saved}",
    )
