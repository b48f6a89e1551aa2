"""What is measured of a run, its loss and its speed; its profile; and when garbage is collected."""

import gc
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

from moray.config.schema.train import Train
from moray.workers.collectives import sum_over_workers
from moray.workers.entry import Worker


class MeanLoss:
    """The mean loss of the steps since the last line of the history.

    It depends neither on the number of workers nor on where a run was interrupted, because sums in
    fp64 are exact: they have few terms, all of them fp32.
    """

    # Its name in a checkpoint: the sum and the number of the losses, shape (2,).
    NAME = "unlogged/loss"

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._sum = torch.zeros((), dtype=torch.float64, device=worker.device)
        self._steps = 0

    def add(self, loss: Tensor) -> None:
        """Add this worker's share of a step's loss, shape ()."""
        self._sum += loss
        self._steps += 1

    def take(self) -> float:
        """The mean over all steps that were added; forgets them."""
        mean = sum_over_workers(self._sum).item() / self._steps
        self._sum.zero_()
        self._steps = 0
        return mean

    def state(self) -> dict[str, Tensor]:
        """This worker's part of a checkpoint, empty if all steps have been logged."""
        if not self._steps:
            return {}
        total = sum_over_workers(self._sum.clone()).item()
        first = self._worker.rank == 0
        return {self.NAME: torch.tensor([total, self._steps], dtype=torch.float64)} if first else {}

    def restore(self, state: Tensor) -> None:
        """Go on from what a checkpoint has."""
        total, steps = state.tolist()
        self._sum.fill_(total if self._worker.rank == 0 else 0.0)
        self._steps = int(steps)


# Dense bf16 FLOP/s from NVIDIA's data sheets; the first key found in the device's name applies.
_PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
}


def peak_flops(device: torch.device) -> float | None:
    """Dense bf16 FLOP/s of a device according to its vendor; None if not in the table."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in _PEAKS.items() if re.search(rf"\b{key}\b", name)), None)


class Stopwatch:
    """Times steps, excluding the evaluations and checkpoints between them."""

    def __init__(
        self, worker: Worker, unit: str, step_units: int, step_flops: float, first_step: int
    ) -> None:
        """Start the clock.

        Args:
            unit: what speed is counted in, plural.
            step_units: number of them in a step, over all workers.
            step_flops: FLOPs of a step, over all workers.
        """
        self._worker = worker
        self._unit = unit
        self._step_units = step_units
        self._flops = step_flops
        self._peak = peak_flops(worker.device)
        self._seconds, self._steps = 0.0, 0
        self.start(first_step)

    def start(self, done: int) -> None:
        """Start the clock after `done` steps."""
        self._began, self._first = time.perf_counter(), done

    def stop(self, done: int) -> None:
        """Stop the clock after `done` steps, once the device has finished them."""
        if self._worker.device.type == "cuda":
            torch.cuda.synchronize(self._worker.device)
        self._seconds += time.perf_counter() - self._began
        self._steps += done - self._first

    def speed(self) -> dict[str, float]:
        """Speed for the history, over the steps since the last call.

        `mfu` (model FLOPs utilisation; PaLM, 2022) is the share of the peak FLOP/s that the
        model's arithmetic reaches; it is left out if the peak is not known.
        """
        step_seconds = self._seconds / self._steps
        self._seconds, self._steps = 0.0, 0
        flops_per_second = self._flops / step_seconds
        figures = {
            f"{self._unit}_per_second": self._step_units / step_seconds,
            "step_seconds": step_seconds,
            "tflops": flops_per_second / 1e12,
        }
        if self._peak:
            whole = self._peak * self._worker.world_size
            figures["mfu"] = flops_per_second / whole
        return figures


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection during the body."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def manual_gc() -> Iterator[Callable[[], None]]:
    """Disable automatic garbage collection during the body, where workers would wait for it.

    Yields:
        A function that collects garbage. It skips objects from before the body and from before its
        first call: those left by compilation would take a tenth of a second each time.
    """
    called = False

    def collect() -> None:
        nonlocal called
        gc.collect()
        if not called:
            gc.freeze()
        called = True

    gc.collect()
    gc.freeze()
    try:
        with gc_disabled():
            yield collect
    finally:
        gc.unfreeze()


# The first step compiles and allocates; the profiler itself is slow in its own first step.
_SKIPPED, _WARM_UP = 1, 1


@contextmanager
def profiled(settings: Train, work: Path, worker: Worker) -> Iterator[Callable[[], None]]:
    """Profile steps of the body, if asked for; yields what to call at the beginning of each.

    Writes `profile/worker-{rank}.json.gz` in the run's work folder, in the format of Chrome's
    tracer. Of a run with fewer steps, it has those that there were.
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
