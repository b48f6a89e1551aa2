"""Language modelling with a teacher as a task: rows of tokens with its predictions, their loss."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from moray.config.schema.losses import Distillation
from moray.model.quantization import Bits
from moray.proofs.figures import Figures
from moray.rows.store import RowPositions, Rows
from moray.tasks.distillation import proofs
from moray.tasks.distillation.loss import DistillationLoss, TaughtBatch, make_taught_batch
from moray.tasks.language.proofs import plain
from moray.tasks.language.task import LanguageTask
from moray.workers.collectives import from_first_worker


class DistillationTask(LanguageTask):
    """Rows are packed documents with a teacher's predictions; see `loss.distillation_losses`."""

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None:
        super().__init__(manifest, settings)
        self._settings = Distillation(**settings["distillation"])

    def loss_module(self, model: PreTrainedModel) -> DistillationLoss:
        plain_head = from_first_worker(lambda: self._check(model))
        return DistillationLoss(model, plain_head, self._settings)

    def batch(self, rows: Rows, row_positions: RowPositions | None) -> TaughtBatch:
        return make_taught_batch(rows)

    def plain(
        self,
        folder: Path,
        start: Path,
        rows: Rows,
        bits: Bits | None,
        device: torch.device,
        gradient: bool,
    ) -> Figures:
        model = plain.load(folder, bits, device)
        with_gradient = gradient and not plain.draws(model)
        losses = partial(proofs.losses, settings=self._settings)
        return plain.figures_of(model, rows, with_gradient, losses)


task = DistillationTask
