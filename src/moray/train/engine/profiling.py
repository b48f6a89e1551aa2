"""A profile of a few steps, by PyTorch's profiler."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from moray.config.schema import Train
from moray.workers.worker import Worker

# The first step compiles and allocates; the profiler itself is slow in its own first step.
_SKIPPED, _WARM_UP = 1, 1


@contextmanager
def profiled(settings: Train, work: Path, worker: Worker) -> Iterator[Callable[[], None]]:
    """Profile steps of the body, if the config asks for it.

    Writes `profile/worker-{rank}.json.gz` in the run's work folder, in the format of Chrome's
    tracer. Of a run with fewer steps, it has those that there were.

    Args:
        settings: the `train` section.
        work: folder of the run.
        worker: this worker.

    Yields:
        A function to call at the beginning of each step.
    """
    if settings.profile is None:
        yield lambda: None
        return
    folder = work / "profile"
    folder.mkdir(exist_ok=True)
    on_gpu = [ProfilerActivity.CUDA] if worker.device.type == "cuda" else []
    with profile(
        activities=[ProfilerActivity.CPU, *on_gpu],
        schedule=schedule(
            wait=_SKIPPED, warmup=_WARM_UP, active=settings.profile.steps, repeat=1, skip_first=1
        ),
        on_trace_ready=lambda made: made.export_chrome_trace(
            str(folder / f"worker-{worker.rank}.json.gz")
        ),
        record_shapes=True,
    ) as profiler:
        yield profiler.step
