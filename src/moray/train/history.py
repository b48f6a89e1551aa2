"""A run's history: one JSON line per logging step or evaluation, written by the first worker."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moray.lines import parse_lines

HISTORY = "history.jsonl"
# By what part of the lowest validation loss another one is worse, and not by chance of a few rows.
_WORSE = 0.01


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

    def compare_exported(
        self, losses: Mapping[int, float], best: int, exported: int, num_steps: int
    ) -> None:
        """Add a warning if the exported step isn't what a user would expect to have trained.

        Args:
            losses: on the validation split, by evaluated step.
            best: the step with the lowest loss.
        """
        starts = (line["start_loss"] for line in read_history(self.path) if "start_loss" in line)
        start, lowest, step = next(starts, None), losses[best], max(losses)
        # A loss that is NaN isn't better either.
        if start is not None and not lowest < start:
            note = (
                "no checkpoint is better than the model that the run starts from: validation loss "
                f"{start:.4f} before training, {lowest:.4f} at step {best}, the best"
            )
        elif losses[exported] > lowest + _WORSE * abs(lowest):
            note = (
                f"the validation loss was {lowest:.4f} at step {best}, and is "
                f"{losses[exported]:.4f} at step {exported}, which is exported; "
                "train.load_best_model_at_end: true exports the best"
            )
        else:
            return
        self.append(step=step, num_steps=num_steps, note=f"warning: {note}")

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
