"""Token classification as a task: batches of texts, and the loss of the tags of their words.

The loss is transformers': the cross-entropy of the tags, over all words of a step. See `Task` for
what the methods do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from moray.errors import UserError
from moray.model.quantization import Bits, Quantization
from moray.proofs.figures import Figures
from moray.rows.loader import stored_windows
from moray.rows.store import RowPositions, Rows, WindowReader, record_of
from moray.tasks.classification.classifier import empty, is_of_words, load, names_of
from moray.tasks.classification.padded import PaddedTexts, padded
from moray.tasks.token_classification import proofs
from moray.train.task import LossModule
from moray.workers.collectives import from_first_worker

_IGNORED = -100


@dataclass(frozen=True)
class TaggedBatch(PaddedTexts):
    """Texts and the tags of their words.

    Attributes:
        labels: the number of the tag at the first token of each word, and -100 elsewhere, shape
            (texts, tokens).
    """

    labels: Tensor


def make_batch(rows: Rows) -> TaggedBatch:
    """Make a batch of rows, as wide as the longest of them."""
    texts = padded(rows)
    labels = rows["labels"][:, : texts.tokens.shape[1]].astype(np.int64)
    labels = np.where(labels > 0, labels - 1, _IGNORED)
    return TaggedBatch(**vars(texts), labels=torch.from_numpy(labels))


class TagLoss(LossModule):
    """The loss of the tags of a batch."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        # Of a decoder, which would keep keys and values that nothing asks for.
        model.config.use_cache = False
        self.model = model

    def forward(self, batch: TaggedBatch) -> Tensor:
        """Sum of the losses of the words, fp32, shape ()."""
        logits = batch.logits(self.model).flatten(0, 1)
        return F.cross_entropy(
            logits, batch.labels.flatten(), ignore_index=_IGNORED, reduction="sum"
        )


class TokenClassificationTask:
    """Rows are texts whose words have a tag each; the loss is that of the tags."""

    unit = "texts"
    units_per_row = 1
    # Kernels for rows of documents don't know padding.
    row_length = None
    fault_of_bf16_on_cpu = None

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None:
        self.record = record_of(manifest)
        self._tokens: int = manifest["block_size"]
        self._names: list[str] = manifest["label_names"]

    def load(
        self, start: Path, dtype: torch.dtype, quantization: Quantization | None
    ) -> PreTrainedModel:
        return load(start, dtype)

    def empty(self, start: Path, dtype: torch.dtype) -> PreTrainedModel:
        return empty(start, dtype)

    def loss_module(self, model: PreTrainedModel) -> TagLoss:
        from_first_worker(lambda: self._check_labels(model.config))
        return TagLoss(model)

    def _check_labels(self, config: Any) -> None:
        if not is_of_words(config) or names_of(config) != self._names:
            what = "its classes aren't the tags of the dataset"
            raise UserError("model", what, "set classes_of of the base model to the run's dataset")

    def flops_per_row(self, model: PreTrainedModel) -> float:
        return 6.0 * self._tokens * int(model.num_parameters(exclude_embeddings=True))

    def batch(self, rows: Rows, row_positions: RowPositions | None) -> TaggedBatch:
        return make_batch(rows)

    def weight(self, rows: Rows) -> int:
        return int(np.count_nonzero(rows["labels"]))

    def plain(
        self,
        folder: Path,
        start: Path,
        rows: Rows,
        bits: Bits | None,
        device: torch.device,
        gradient: bool,
    ) -> Figures:
        model = proofs.load(folder).to(device)
        return proofs.figures_of(model, rows, gradient and not proofs.draws(model))

    def window_reader(self, store: Path, rows_url: str) -> WindowReader:
        return stored_windows(store, rows_url)


task = TokenClassificationTask
