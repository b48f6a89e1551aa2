"""Measured speed of a run, and peak speed of its device."""

import re
import time

import torch

from moray.workers.worker import Worker

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
            worker: this worker.
            unit: what speed is counted in, plural.
            step_units: number of them in a step, over all workers.
            step_flops: FLOPs of a step, over all workers.
            first_step: number of steps already done.
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
