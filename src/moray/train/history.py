"""A run's history: one JSON line per logging step or evaluation, written by the first worker."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moray.lines import parse_lines

HISTORY = "history.jsonl"


class History:
    """Appends lines to a run's history."""

    def __init__(self, work: Path, first_step: int) -> None:
        """Open a history at a step; lines of later steps are dropped."""
        self.path = work / HISTORY
        lines = read_history(self.path) if first_step else []
        earlier = [line for line in lines if line["step"] <= first_step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in earlier))
        temporary.replace(self.path)

    def append(self, **line: Any) -> None:
        """Add a line, with the time in seconds since the epoch."""
        with self.path.open("a") as file:
            file.write(json.dumps({**line, "time": round(time.time(), 3)}) + "\n")

    def compare_with_start(self, best: int, loss: float, step: int, num_steps: int) -> None:
        """Add a warning if the best evaluated step is no better than the run's start."""
        losses = (line["start_loss"] for line in read_history(self.path) if "start_loss" in line)
        start = next(losses, None)
        # A loss that is NaN isn't better either.
        if start is not None and not loss < start:
            note = (
                "warning: no checkpoint is better than the model that the run starts from: "
                f"validation loss {start:.4f} before training, {loss:.4f} at step {best}, the best"
            )
            self.append(step=step, num_steps=num_steps, note=note)

    def sync(self) -> None:
        """Flush the lines to disk, before a checkpoint claims that their steps are done."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())


def read_history(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a history, parsed."""
    return parse_lines(path, ["step"])


def evaluations(work: Path, until: int) -> dict[int, float]:
    """The validation losses of a run up to a step, by step."""
    lines = read_history(work / HISTORY)
    return {
        line["step"]: line["eval_loss"]
        for line in lines
        if "eval_loss" in line and line["step"] <= until
    }
