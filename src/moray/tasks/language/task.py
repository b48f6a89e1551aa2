"""Language modelling as a task; see `Task` for what its methods do."""

import json
import os
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from moray.config.tasks import sequence_length
from moray.corpus.dataset import read_group
from moray.model.load import check_length, empty_model, load_model
from moray.model.quantization import Bits, Quantization
from moray.model.size import flops_per_token
from moray.proofs.figures import Figures
from moray.provenance.manifest import read_manifest
from moray.rows.loader import stored_windows
from moray.rows.store import RowPositions, Rows, WindowReader, record_of
from moray.tasks.language.encode import Encoder, make_encoder
from moray.tasks.language.isolation import check_isolation
from moray.tasks.language.loss import TokenBatch, TokenLoss, has_plain_head, make_batch
from moray.tasks.language.proofs import plain
from moray.tasks.language.rows import ROWS_FROM, TOKENIZER, encode_window, num_trained
from moray.workers.collectives import from_first_worker


class LanguageTask:
    """Rows are packed documents; the loss is that of their trained tokens."""

    unit = "tokens"
    fault_of_bf16_on_cpu = None

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None:
        self.record = record_of(manifest)
        self.row_length: int = manifest["block_size"]
        self.units_per_row: int = manifest["block_size"]
        self._longest = sequence_length(manifest["recipe"]["format"], manifest["block_size"])
        self._packing: bool = manifest["recipe"]["packing"]

    def load(
        self, start: Path, dtype: torch.dtype, quantization: Quantization | None
    ) -> PreTrainedModel:
        return load_model(start, dtype, quantization=quantization)

    def empty(self, start: Path, dtype: torch.dtype) -> PreTrainedModel:
        return empty_model(start, dtype)

    def loss_module(self, model: PreTrainedModel) -> TokenLoss:
        return TokenLoss(model, plain_head=from_first_worker(lambda: self._check(model)))

    def _check(self, model: PreTrainedModel) -> bool:
        """Check that the model fits the rows; returns whether its head is plain."""
        if self._packing:
            check_isolation(model)
        check_length(model, self._longest)
        return has_plain_head(model)

    def flops_per_row(self, model: PreTrainedModel) -> float:
        return self.units_per_row * flops_per_token(model, self.row_length)

    def batch(self, rows: Rows, row_positions: RowPositions | None) -> TokenBatch:
        return make_batch(rows)

    def weight(self, rows: Rows) -> int:
        return num_trained(rows)

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
        return plain.figures_of(model, rows, gradient and not plain.draws(model))

    def window_reader(self, store: Path, rows_url: str) -> WindowReader:
        """See `Task.window_reader`; tokenises the window if the store doesn't have its rows."""
        recipe = read_manifest(store)["recipe"]
        if recipe["tokenize"] == "on-the-fly":
            return partial(_made_again, str(store), json.dumps(recipe))
        return stored_windows(store, rows_url)


def _made_again(store: str, recipe: str, window: int) -> Rows:
    # The task has reserved one CPU; by default, tokenizers uses all of them.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    encoder = _encoder(store, recipe)
    # Rows don't contain document numbers, so 0 is as good as any.
    documents = read_group(Path(store, ROWS_FROM), window)
    packing = json.loads(recipe)["packing"]
    return encode_window(documents, 0, encoder, packing, count_bytes=False).rows


@lru_cache(maxsize=1)
def _encoder(store: str, recipe: str) -> Encoder:
    return make_encoder(Path(store, TOKENIZER), json.loads(recipe))


task = LanguageTask
