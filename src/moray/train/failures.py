"""Turn worker failures into one-line messages that say what to do; make a hung training fail.

After a worker failure the run is retried, as often as `ray.max_failures` allows, because the
machine may be the cause; but not if code raises the same error again (`moray.workers.repeats`). So
the worker raises the error unchanged and writes its explanation to a file, which the driver reports
when no retries are left.
"""

import errno
import faulthandler
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moray.config.schema.train import Train
from moray.errors import UserError, first_line
from moray.provenance.manifest import write_json
from moray.provenance.space import full_disk_error, is_full_disk
from moray.storage.open import open_storage
from moray.train.checkpoint.keep import newest_step
from moray.train.history import HISTORY, read_history
from moray.train.memory import rows_of_micro_batch
from moray.train.spec import RunSpec
from moray.workers.entry import Worker
from moray.workers.launch import WorkersFailedError
from moray.workers.memory import is_out_of_memory
from moray.workers.repeats import last_error

MEANING = "failure.json"
# The key that a gradient which isn't finite is blamed on.
DIVERGED = "train.learning_rate"

_STALLED = "stalled-"
_NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


@contextmanager
def explain_failures(spec: RunSpec, worker: Worker) -> Iterator[Callable[[int], None]]:
    """Write the explanation of a failure in the body to a file; replaces earlier attempts'.

    Yields:
        A function to call with the number of steps done.
    """
    if worker.rank == 0:
        (spec.work / MEANING).unlink(missing_ok=True)
    steps = deque[int](maxlen=1)
    try:
        yield steps.append
    except UserError:
        raise
    except Exception as error:
        # Without progress, it is the same error as that of the attempt before. Another worker may
        # be writing the history of this step right now, so that is read only before the first one.
        error.add_note(f"the last known step is {steps[-1] if steps else _last_step(spec)}")
        if meaning := _meaning(error, spec, worker):
            # A full disk may not even have room for this.
            with suppress(OSError):
                write_json(spec.work / MEANING, meaning.args)
        raise


def _meaning(error: Exception, spec: RunSpec, worker: Worker) -> UserError | None:
    if is_full_disk(error):
        return full_disk_error(spec.work)
    if not is_out_of_memory(error):
        return None
    rows = rows_of_micro_batch(spec.settings, worker.world_size)
    # Python's MemoryError often has no text.
    text = first_line(error)
    other = "set train.gradient_checkpointing: true or train.strategy: fsdp2"
    return UserError(
        "train.micro_batch_size",
        f"micro-batches of {rows} don't fit in the memory of worker {worker.rank} "
        f"({worker.device.type}: {text})",
        f"set it to {rows // 2}, or {other}" if rows > 1 else other,
    )


def forget(work: Path) -> None:
    """Remove the files that earlier starts of a run have left."""
    (work / MEANING).unlink(missing_ok=True)
    for path in work.glob(f"{_STALLED}*.txt"):
        path.unlink()


def meaning_of(failed: WorkersFailedError, spec: RunSpec) -> UserError:
    """The error for a run whose workers failed for good; stack traces go to the log."""
    file = spec.work / MEANING
    if file.exists():
        return UserError(*json.loads(file.read_text()))
    if any(text in str(failed) for text in _NO_ROOM):
        # There is no explanation file, because that takes space too.
        return full_disk_error(spec.work)
    if raised := last_error(spec.work):
        return raised
    if hung := stacks(spec.work):
        for rank, text in hung.items():
            print(f"worker {rank} hung here:\n{text}", file=sys.stderr)
        workers = ", ".join(map(str, hung))
        return UserError(
            f"runs.{spec.name}.train.stall_timeout",
            f"workers {workers} completed no step within {spec.settings.stall_timeout:g} s; the "
            f"last known step is {_last_step(spec)}",
            "see their stack traces in the log; raise it if steps take that long",
        )
    saved = newest_step(open_storage(spec.work, spec.remote))
    return UserError(
        f"runs.{spec.name}.ray.max_failures",
        f"workers failed more than {spec.ray.max_failures} times; the last failure: {failed}",
        "see the log; if a worker was killed, it may have run out of memory: lower "
        f"train.micro_batch_size; the same command continues from step {saved}",
    )


def _last_step(spec: RunSpec) -> int:
    return max((line["step"] for line in read_history(spec.work / HISTORY)), default=0)


def collective_timeout(settings: Train) -> float:
    """Seconds after which a collective gives up.

    Longer than the stall timeout, so that the worker that hangs dumps its stacks first.
    """
    return 2 * settings.stall_timeout


@contextmanager
def exit_on_stall(work: Path, rank: int, seconds: float) -> Iterator[Callable[[], None]]:
    """During the body, end this process if the yielded function isn't called in time.

    The stacks of its threads are written to the folder first, by a thread that doesn't need the
    interpreter, which may be what hangs.
    """
    with (work / stacks_name(rank)).open("w") as file:

        def alive() -> None:
            faulthandler.dump_traceback_later(seconds, file=file, exit=True)

        alive()
        try:
            yield alive
        finally:
            faulthandler.cancel_dump_traceback_later()


def stacks_name(rank: int) -> str:
    """Name of the file with a worker's stacks."""
    return f"{_STALLED}{rank}.txt"


def stacks(work: Path) -> dict[int, str]:
    """The stacks of workers that hung, by rank."""
    files = work.glob(f"{_STALLED}*.txt")
    stacks = {int(path.stem.removeprefix(_STALLED)): path.read_text() for path in files}
    return {rank: text for rank, text in sorted(stacks.items()) if text}
