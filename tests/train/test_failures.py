"""What the user sees when workers fail or hang, by failures that are real."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moray.config.schema.sections import Ray
from moray.config.schema.train import Train
from moray.errors import UserError
from moray.storage.folder import FolderStorage
from moray.train.failures import exit_on_stall, explain_failures, forget, meaning_of, stacks
from moray.train.history import HISTORY, History
from moray.train.spec import RunSpec
from moray.workers.entry import Worker
from moray.workers.launch import WorkersFailedError
from moray.workers.repeats import end_on_repeated_error

PLACE = Worker(rank=3, world_size=4, device=torch.device("cpu"))
FAILED = WorkersFailedError("worker 3: ValueError: odd")


@pytest.fixture
def job(tmp_path: Path) -> RunSpec:
    work = tmp_path / "work"
    work.mkdir()
    return RunSpec(
        "tuned",
        start=tmp_path,
        parts=(),
        settings=Train(micro_batch_size=4, stall_timeout=90),
        ray=Ray(max_failures=3),
        work=work,
        cache=tmp_path,
    )


def report(job: RunSpec) -> str:
    return str(meaning_of(FAILED, job))


# No machine has an address space for these.
def too_large_an_array() -> None:
    bytearray(2**62)


@pytest.mark.parametrize(
    ("allocate", "error", "text"),
    [
        (lambda: torch.empty(2**48), RuntimeError, "can't allocate memory: you tried to allocate"),
        (too_large_an_array, MemoryError, ": MemoryError)"),
        (lambda: [None] * 2**59, MemoryError, ": MemoryError)"),
    ],
    ids=["tensor", "array", "list"],
)
def test_memory_that_is_too_small_is_reported_with_what_to_lower(
    job: RunSpec, allocate: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error), explain_failures(job, PLACE):
        allocate()
    line = report(job)
    assert line.startswith(
        "train.micro_batch_size: micro-batches of 4 don't fit in the memory of worker 3 (cpu: "
    )
    assert text in line
    assert line.endswith(
        "); set it to 2, or set train.gradient_checkpointing: true or train.strategy: fsdp2"
    )


def test_a_single_row_is_not_asked_to_be_lowered(job: RunSpec) -> None:
    job = replace(job, settings=Train(micro_batch_size=1))
    with pytest.raises(MemoryError), explain_failures(job, PLACE):
        too_large_an_array()
    assert report(job).endswith("; set train.gradient_checkpointing: true or train.strategy: fsdp2")


def test_the_memory_of_a_gpu_is_reported_too(job: RunSpec) -> None:
    """PyTorch's exception for it, which needs no GPU to be raised."""
    worker = replace(PLACE, device=torch.device("cuda", 1))
    with pytest.raises(torch.OutOfMemoryError), explain_failures(job, worker):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 1 has")
    assert "memory of worker 3 (cuda: CUDA out of memory. Tried to allocate 2.00 GiB.); " in (
        report(job)
    )


def test_a_full_disk_is_reported_as_such(job: RunSpec) -> None:
    (job.work / "file").write_bytes(bytes(2345))
    # The kernel's own device for it: every write says that no space is left.
    with pytest.raises(OSError, match="No space left"), explain_failures(job, PLACE):
        Path("/dev/full").write_text("x")
    assert report(job) == (
        f"{job.work}: the disk is full after writing 2,345 bytes; "
        "free some space and run the same command again"
    )


def test_what_an_earlier_attempt_died_of_is_not_told_of_a_later_one(job: RunSpec) -> None:
    with pytest.raises(MemoryError), explain_failures(job, PLACE):
        too_large_an_array()
    with pytest.raises(ValueError, match="odd"), explain_failures(job, replace(PLACE, rank=0)):
        raise ValueError("odd")
    assert report(job).startswith("runs.tuned.ray.max_failures: workers failed more than 3 times")


def test_a_disk_too_full_for_the_meaning_hides_nothing(job: RunSpec) -> None:
    """The kernel refuses to write anything into files, as it does with a quota."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(file: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        file.write_bytes(b"x")

    try:
        with pytest.raises(OSError, match="File too large") as caught, explain_failures(job, PLACE):
            fill(job.work / "history")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.traceback[-1].name == "write_bytes"
    assert "the last failure: worker 3: ValueError: odd" in report(job)


def test_the_last_known_step_is_the_worker_s_own(job: RunSpec) -> None:
    """The first worker may be writing the history of the step meanwhile, or on another machine."""
    history = History(job.work, first_step=0)
    history.append(step=4, num_steps=8, loss=1.0)

    def fail_after(*steps: int) -> None:
        with explain_failures(job, PLACE) as reached:
            for step in steps:
                reached(step)
            raise ValueError("odd")

    for steps, last in (((), 4), ((2, 3), 3)):
        with pytest.raises(ValueError, match="odd") as caught:
            fail_after(*steps)
        assert caught.value.__notes__ == [f"the last known step is {last}"]


def test_a_disk_that_took_no_meaning_is_reported_by_the_last_failure(job: RunSpec) -> None:
    hang(job, 0)
    failed = WorkersFailedError("OSError: [Errno 28] No space left on device")
    line = str(meaning_of(failed, job))
    assert line.startswith(f"{job.work}: the disk is full after writing ")


@pytest.mark.parametrize(
    "error",
    [
        UserError("train.learning_rate", "got inf", "lower it"),
        ValueError("can't allocate memory for jokes"),
        RuntimeError("connection reset by peer"),
        FileNotFoundError(2, "No such file"),
        KeyboardInterrupt(),
    ],
)
def test_what_needs_no_meaning_or_has_none_passes_as_it_is(
    job: RunSpec, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught, explain_failures(job, PLACE):
        raise error
    assert caught.value is error
    assert list(job.work.iterdir()) == []


def test_a_body_that_does_not_fail_leaves_nothing(job: RunSpec) -> None:
    with explain_failures(job, PLACE):
        pass
    assert list(job.work.iterdir()) == []


def hang(job: RunSpec, *ranks: int) -> None:
    """Leave what workers leave that hang."""
    for rank in ranks:
        write_stack(job.work, rank, f"File all_reduce.py, line {rank}")


def write_stack(work: Path, rank: int, text: str) -> None:
    before = set(work.iterdir())
    with exit_on_stall(work, rank, 600):
        pass
    (file,) = set(work.iterdir()) - before
    file.write_text(text)


def test_workers_that_hung_are_named_with_the_last_step_and_their_stacks_are_logged(
    job: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"step": 4, "loss": 1.0}, {"step": 6, "loss": 1.0}, {"step": 6, "eval_loss": 1.0}]
    (job.work / HISTORY).write_text("".join(json.dumps(line) + "\n" for line in lines))
    hang(job, 0, 2)
    assert report(job) == (
        "runs.tuned.train.stall_timeout: workers 0, 2 completed no step within 90 s; the last "
        "known step is 6; see their stack traces in the log; raise it if steps take that long"
    )
    logged = capsys.readouterr().err
    for rank in (0, 2):
        assert f"worker {rank} hung here:\nFile all_reduce.py, line {rank}\n" in logged


def test_workers_may_hang_before_the_first_step(job: RunSpec) -> None:
    hang(job, 1)
    assert "workers 1 completed no step within 90 s; the last known step is 0;" in report(job)


@pytest.mark.parametrize("steps", [[], [20, 100, 90]])
def test_of_any_other_failure_the_last_one_is_reported_and_where_the_run_goes_on(
    job: RunSpec, steps: list[int]
) -> None:
    storage = FolderStorage(job.work)
    for step in steps:
        storage.commit(step, storage.begin(step), {})
    assert report(job) == (
        "runs.tuned.ray.max_failures: workers failed more than 3 times; the last failure: "
        "worker 3: ValueError: odd; see the log; if a worker was killed, it may have run out of "
        "memory: lower train.micro_batch_size; the same command continues from step "
        f"{max(steps, default=0)}"
    )


def test_an_error_of_code_is_reported_as_it_is_with_the_last_known_step(job: RunSpec) -> None:
    (job.work / HISTORY).write_text('{"step": 6, "loss": 1.0}\n')
    with (
        pytest.raises(IndexError),
        end_on_repeated_error(job.work, PLACE.rank),
        explain_failures(job, PLACE),
    ):
        [][PLACE.rank]
    assert report(job) == (
        "IndexError: list index out of range (worker 3; the last known step is 6); correct its "
        "cause (the traceback is in the log), and run the same command again"
    )


def test_a_meaning_goes_before_the_stacks_of_those_who_waited_for_that_worker(job: RunSpec) -> None:
    hang(job, 0)
    with pytest.raises(MemoryError), explain_failures(job, PLACE):
        too_large_an_array()
    assert report(job).startswith("train.micro_batch_size: ")


def test_what_earlier_starts_have_left_is_forgotten_but_for_the_history(job: RunSpec) -> None:
    forget(job.work)
    hang(job, 0)
    with pytest.raises(MemoryError), explain_failures(job, PLACE):
        too_large_an_array()
    (job.work / HISTORY).touch()
    assert stacks(job.work)
    forget(job.work)
    assert [path.name for path in job.work.iterdir()] == [HISTORY]
    assert report(job).startswith("runs.tuned.ray.max_failures: ")


SCRIPT = """
import ctypes, os, sys, threading, time
from pathlib import Path
from moray.train.failures import exit_on_stall

def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def wait_with_the_interpreter_held():
    ctypes.PyDLL(None).pause()

def go_on(alive, seconds):
    began = time.monotonic()
    while time.monotonic() < began + 1.2 * seconds:
        alive()

work, rank, seconds, body = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
"""
HANGING = """
with exit_on_stall(work, rank, seconds):
    globals()[body]()
print("went on")
"""
WORKING = HANGING.replace("):", ") as alive:").replace("globals()[body]()", "go_on(alive, seconds)")
# Of the kernel's, because the one that waits is none of Python's.
THREADS = """
def threads():
    return len(os.listdir("/proc/self/task"))

def more_threads(expected):
    # One that has ended may be listed for a moment.
    deadline = time.monotonic() + 60
    while threads() - before != expected and time.monotonic() < deadline:
        os.sched_yield()
    return threads() - before

before = threads()
try:
    with exit_on_stall(work, rank, seconds) as alive:
        for _ in range(3):
            alive()
        print(more_threads(1))
        if body == "raises":
            raise KeyError
except KeyError:
    print("raised")
print(more_threads(0))
"""


def run(
    script: str, work: Path, seconds: float, body: str = "", rank: int = 0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + script, str(work), str(rank), str(seconds), body],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.long
@pytest.mark.parametrize("body", ["wait_for_a_lock", "wait_with_the_interpreter_held"])
def test_a_worker_that_hangs_ends_and_says_where_it_was(tmp_path: Path, body: str) -> None:
    done = run(HANGING, tmp_path, 0.2, body, rank=12)
    assert (done.returncode, done.stdout) == (1, "")
    found = stacks(tmp_path)
    assert list(found) == [12]
    assert f" in {body}\n" in found[12]
    assert " in <module>\n" in found[12]


@pytest.mark.long
def test_a_worker_that_goes_on_is_left_alone_however_long_it_takes(tmp_path: Path) -> None:
    done = run(WORKING, tmp_path, 2)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert stacks(tmp_path) == {}


@pytest.mark.parametrize(("body", "expected"), [("", ["1", "0"]), ("raises", ["1", "raised", "0"])])
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads by /proc")
def test_a_body_that_ends_leaves_nobody_waiting(
    tmp_path: Path, body: str, expected: list[str]
) -> None:
    done = run(THREADS, tmp_path, 600, body)
    assert (done.returncode, done.stdout.split()) == (0, expected), done.stderr


def test_stacks_are_those_of_workers_that_hung_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    for rank in range(12):
        write_stack(tmp_path, rank, f"stack of {rank}" if rank != 5 else "")
    expected = [(rank, f"stack of {rank}") for rank in range(12) if rank != 5]
    assert list(stacks(tmp_path).items()) == expected


def test_stacks_of_an_earlier_attempt_go_when_the_next_one_begins(tmp_path: Path) -> None:
    write_stack(tmp_path, 0, "stack")
    assert stacks(tmp_path)
    with exit_on_stall(tmp_path, 0, 600):
        assert stacks(tmp_path) == {}
