"""How fast a run is, and how fast the device could be."""

import re
import time

import torch

from moray.workers.worker import Worker

# Dense bf16 FLOP/s by NVIDIA's data sheets; the first name whose words occur in the device's.
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
    """Dense bf16 FLOP/s that a device's maker states; None where that is not known here."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in _PEAKS.items() if re.search(rf"\b{key}\b", name)), None)


class Stopwatch:
    """Times steps, without the evaluations and checkpoints between them."""

    def __init__(
        self, worker: Worker, step_tokens: int, flops_per_token: float, first_step: int
    ) -> None:
        """Start the clock.

        Args:
            worker: this worker.
            step_tokens: tokens in a step, over all workers.
            flops_per_token: of a forward and a backward pass.
            first_step: steps that are done already.
        """
        self._worker = worker
        self._step_tokens = step_tokens
        self._flops = flops_per_token
        self._peak = peak_flops(worker.device)
        self._seconds, self._steps = 0.0, 0
        self.start(first_step)

    def start(self, done: int) -> None:
        """Start the clock; so many steps are done."""
        self._began, self._first = time.perf_counter(), done

    def stop(self, done: int) -> None:
        """Stop the clock, once the device has done these steps."""
        if self._worker.device.type == "cuda":
            torch.cuda.synchronize(self._worker.device)
        self._seconds += time.perf_counter() - self._began
        self._steps += done - self._first

    def speed(self) -> dict[str, float]:
        """Figures for the history, of the steps since this was last asked.

        `mfu` is the share of the peak FLOP/s that the model's own arithmetic comes to (PaLM,
        2022); it is left out where the peak is not known.
        """
        step_seconds = self._seconds / self._steps
        self._seconds, self._steps = 0.0, 0
        tokens_per_second = self._step_tokens / step_seconds
        figures = {
            "tokens_per_second": tokens_per_second,
            "step_seconds": step_seconds,
            "tflops": tokens_per_second * self._flops / 1e12,
        }
        if self._peak:
            whole = self._peak * self._worker.world_size
            figures["mfu"] = tokens_per_second * self._flops / whole
        return figures
