"""What transformers' `Trainer` is measured with: packed rows as it takes them, and a clock."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import TrainerCallback

from moray.tasks.language.rows import StoredSplit


class Rows(Dataset[dict[str, Tensor]]):
    """The rows of a folder's `tokens`; all of their tokens are trained."""

    def __init__(self, folder: Path, split: str = "train") -> None:
        self._rows = StoredSplit(folder / "tokens", split).rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.from_numpy(self._rows[index]["tokens"].astype("int64"))
        return {"input_ids": tokens, "labels": tokens}


class Clock(TrainerCallback):
    """When each step ended, in seconds."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Called by the `Trainer`."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
