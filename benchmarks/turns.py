"""Contestants that stay warm: each is a process that waits while another one measures.

Start-up, compilation and the first window don't count, and all contestants do them at the same
time. Each has its turn in every round, so that a slow minute hits all of them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch

Figures = dict[str, Any]


class Turns:
    """A contestant's side."""

    def __init__(self, device: torch.device) -> None:
        """Take standard output over; what libraries print goes to standard error."""
        self._device = device
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def next(self, figures: Figures | None) -> None:
        """Tell the figures of a turn, None before the first one, and wait for the next turn.

        The process ends if there is none.
        """
        if figures and self._device.type == "cuda":
            figures["peak_gb"] = torch.cuda.max_memory_allocated(self._device) / 1e9
        print(json.dumps(figures), file=self._out, flush=True)
        if not sys.stdin.readline():
            os._exit(0)

    def repeat(self, run: Callable[[], object], tokens: int, flops_per_token: float = 0) -> None:
        """Time a function once in each turn, after a first call that doesn't count."""
        figures = None
        run()
        while True:
            self.next(figures)
            began = time.perf_counter()
            run()
            finish(self._device)
            speed = tokens / (time.perf_counter() - began)
            figures = {"tokens_per_second": speed, "flops": speed * flops_per_token}


class Windows:
    """Turns of some steps each of a loop that calls `begin_step`."""

    def __init__(
        self, turns: Turns, device: torch.device, steps: int, tokens: int, flops: float
    ) -> None:
        """Count from the first step.

        Args:
            device: waited for at the borders of windows.
            steps: of a window.
            tokens: of a step.
            flops: of a step.
        """
        self._turns, self._device = turns, device
        self._window, self._tokens, self._flops = steps, steps * tokens, steps * flops
        self._steps, self._began = 0, 0.0

    def begin_step(self) -> None:
        """Measure a window if this step is the first of the next one."""
        if self._steps and self._steps % self._window == 0:
            launched = time.perf_counter() - self._began
            finish(self._device)
            seconds = time.perf_counter() - self._began
            figures = {
                "tokens_per_second": self._tokens / seconds,
                "flops": self._flops / seconds,
                # Near 1, the device waits for the host.
                "host": launched / seconds,
            }
            self._turns.next(figures if self._began else None)
            self._began = time.perf_counter()
        self._steps += 1


def finish(device: torch.device) -> None:
    """Wait until a device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def alternate(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[Figures]]:
    """The figures of each contestant's turns; of one that failed, `failed` with the reason.

    Args:
        commands: the processes, each of which has `Turns`.
    """
    with ExitStack() as stack:
        started = {name: _Process(command, stack) for name, command in commands.items()}
        began = time.monotonic()
        for name, process in started.items():
            process.read()
            print(f"{name}: ready after {time.monotonic() - began:.0f} s", file=sys.stderr)
        figures: dict[str, list[Figures]] = {name: [] for name in commands}
        # In the first round, clocks are still low.
        for _ in range(1 + rounds):
            for name, process in started.items():
                process.turn()
                figures[name].append(process.read())
                print(f"{name}: {figures[name][-1]}", file=sys.stderr)
        return {name: turns[1:] for name, turns in figures.items()}


class _Process:
    def __init__(self, command: Sequence[str], stack: ExitStack) -> None:
        self._errors = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._process = stack.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
        )

    def turn(self) -> None:
        assert self._process.stdin is not None
        if self._process.poll() is None:
            # One that has failed meanwhile is told apart by what it says, see `read`.
            with suppress(BrokenPipeError):
                os.write(self._process.stdin.fileno(), b"\n")

    def read(self) -> Figures:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line) or {}
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit status {self._process.wait()}"}
