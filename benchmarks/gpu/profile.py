"""Where a contestant's turn goes on a GPU: `python -m benchmarks.gpu.profile NAME FOLDER`.

FOLDER is that of a model in the `--folder` of `python -m benchmarks.gpu`.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.contestants import CONTESTANTS
from benchmarks.turns import Figures, Turns, finish

_LINES = 32


class _Profiled(Turns):
    """A single turn, which prints its kernels, those with the most time first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        self._profiler = profile(activities=activities[: 1 + (device.type == "cuda")])

    def next(self, figures: Figures | None) -> None:
        finish(self._device)
        if figures is None:
            self._profiler.start()
            return
        self._profiler.stop()
        events = [
            event for event in self._profiler.key_averages() if event.device_type.name == "CUDA"
        ]
        spent = sum(event.self_device_time_total for event in events) / 1e6
        print(f"{figures}\n{spent:.3f} s of kernels in the turn")
        events.sort(key=lambda event: -event.self_device_time_total)
        for event in events[:_LINES]:
            milliseconds = event.self_device_time_total / 1e3
            print(f"{milliseconds:9.2f} ms {event.count:6} of {event.key[:110]}")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with TemporaryDirectory(prefix="moray-benchmark-") as work:
        CONTESTANTS[name](Path(folder), Path(work, "work"), device, _Profiled(device))
