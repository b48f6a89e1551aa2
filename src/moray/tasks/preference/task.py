"""Learning from preferences as a task; see `Task` for what its methods do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from moray.config.schema.train import Preference
from moray.model.quantization import Quantization
from moray.rows.loader import stored_windows
from moray.rows.store import Drawn, Rows, WindowReader
from moray.tasks.language.task import LanguageTask
from moray.tasks.preference.loss import PairBatch, PreferenceLoss, make_pair_batch
from moray.tasks.preference.rows import num_pairs
from moray.workers.collectives import from_first_worker


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """Turn off a model's dropout: its reference has none, so it would differ from the start.

    Modules keep their probabilities as attributes, which their config only initialises, so what is
    exported keeps its own.
    """
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or isinstance(module, nn.Dropout)):
                setattr(module, name, 0.0)
    return model


class PreferenceTask(LanguageTask):
    """Rows are packed pairs of answers; the loss is that of the pairs."""

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None:
        super().__init__(manifest, settings)
        # Without packing, each half of a row is a sequence of its own.
        self.row_length = manifest["block_size"] // (1 if self._packing else 2)
        self.units_per_row = manifest["block_size"]
        self._settings = Preference(**settings["preference"])

    def load(
        self, start: Path, dtype: torch.dtype, quantization: Quantization | None
    ) -> PreTrainedModel:
        return without_dropout(super().load(start, dtype, quantization))

    def empty(self, start: Path, dtype: torch.dtype) -> PreTrainedModel:
        return without_dropout(super().empty(start, dtype))

    def loss_module(self, model: PreTrainedModel) -> PreferenceLoss:
        plain_head = from_first_worker(lambda: self._checked(model))
        return PreferenceLoss(model, plain_head, self._settings)

    def batch(self, rows: Rows, drawn: Drawn | None) -> PairBatch:
        return make_pair_batch(rows, self._packing)

    def weight(self, rows: Rows) -> int:
        return int(num_pairs(rows).sum())

    def window_reader(self, store: Path, rows_url: str) -> WindowReader:
        return stored_windows(store, rows_url)


task = PreferenceTask
