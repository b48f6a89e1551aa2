"""Losses of texts with labels by plain transformers, one text at a time and without padding."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from moray.proofs.budget import TOO_LARGE, num_rows_affordable
from moray.proofs.comparison import Comparison, transformers_version
from moray.proofs.figures import Figures

_LOCAL = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
TOKENS = 256
"""A text takes a model about as much as so many tokens take a language model."""


def load(folder: Path, of_words: bool = False) -> Any:
    """A model or an adapter on its base, as a user would load it, in fp32 and evaluation mode.

    Args:
        of_words: whether it tells apart words, not texts.
    """
    manifest = folder / "manifest.json"
    if not (folder / "config.json").is_file() and manifest.is_file():
        # Takes over a second to import.
        from peft import PeftModel

        base = folder.absolute() / json.loads(manifest.read_text())["base"]["path"]
        whole: Any = PeftModel.from_pretrained(
            load(Path(os.path.normpath(base)), of_words), str(folder)
        )
        return whole.merge_and_unload().eval()
    auto = AutoModelForTokenClassification if of_words else AutoModelForSequenceClassification
    return auto.from_pretrained(folder, dtype=torch.float32, **_LOCAL).eval()


def losses(
    model: Any, rows: NDArray[np.void], weights: Sequence[float] | None = None
) -> list[Tensor]:
    """The loss of each text of stored rows, shape (), as the model itself computes it.

    Args:
        weights: of the classes; of the texts that have them, if they can have several.
    """
    found = []
    for row in rows[rows["length"] > 0]:
        tensors = inputs_of(row, model.device)
        label = torch.from_numpy(np.array(row["label"])[None])
        label = (label if label.is_floating_point() else label.long()).to(model.device)
        if weights is not None and label.is_floating_point():
            # Transformers' own loss has no such weights.
            scores = model(**tensors).logits[0].float()
            there = torch.tensor(weights, device=scores.device) * label[0] * (-scores).exp().log1p()
            found.append((there + (1 - label[0]) * scores.exp().log1p()).mean())
            continue
        loss = model(**tensors, labels=label).loss.float()
        found.append(loss if weights is None else loss * weights[int(label)])
    return found


def inputs_of(row: np.void, device: torch.device) -> dict[str, Tensor]:
    """What a model gets of a stored text, without padding."""
    length = int(row["length"])
    inputs = {"input_ids": row["tokens"][:length].astype(np.int64)}
    if "types" in (row.dtype.names or ()):
        inputs["token_type_ids"] = row["types"][:length].astype(np.int64)
    return {key: torch.from_numpy(value[None]).to(device) for key, value in inputs.items()}


def mean_loss(folder: Path, rows: NDArray[np.void], device: torch.device) -> float:
    """The mean loss of stored texts with the model in a folder."""
    with torch.no_grad():
        return float(torch.stack(losses(load(folder).to(device), rows)).mean())


def figures_of(model: Any, rows: NDArray[np.void], weights: Any, gradient: bool) -> Figures:
    """The mean loss of stored texts, and the norm of its gradient by all weights."""
    with torch.set_grad_enabled(gradient):
        loss = torch.stack(losses(model, rows, weights)).mean()
    return with_norm(model, loss, gradient)


def with_norm(model: Any, loss: Tensor, gradient: bool) -> Figures:
    """A loss, and the norm of its gradient by all weights."""
    if not gradient:
        return Figures(loss.item())
    torch.autograd.backward(loss)
    squares = (p.grad.double().square().sum() for p in model.parameters() if p.grad is not None)
    return Figures(loss.item(), math.sqrt(sum(map(float, squares))))


def compare_base(
    folder: Path, source: Path | None, model: Any, text: str, seconds: float
) -> Iterator[Comparison]:
    """Compare a base model with what is read back from its folder, and with its source.

    Args:
        source: the folder that it was made from; None if its weights are random.
        model: as it was written, in evaluation mode.
        text: one to classify.
        seconds: that making it took.
    """
    if num_rows_affordable(folder, seconds, TOKENS, num_models=3) < 1:
        yield Comparison("logits of a text", skipped=TOO_LARGE)
        return
    of_words = type(model).__name__.endswith("ForTokenClassification")
    read, own, version = load(folder, of_words), model.state_dict(), transformers_version()
    equal = _num_equal(own, read.state_dict())
    yield Comparison("weights that are read back as they were", len(own), equal, version)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokens = tokenizer(text, truncation=True, max_length=32, return_tensors="pt")
    with torch.no_grad():
        here, there = (float(one(**tokens).logits[0].sum()) for one in (model, read))
    yield Comparison("sum of the logits of a text", here, there, version, 1, 1e-4)
    if source is not None:
        before = load(source, of_words).base_model.state_dict()
        body = model.base_model.state_dict()
        # Where the source is a language model, that is random.
        body = {name: value for name, value in body.items() if "pooler" not in name}
        yield Comparison("weights of its source", len(body), _num_equal(body, before), version)


def _num_equal(own: dict[str, Tensor], other: dict[str, Tensor]) -> int:
    return sum(name in other and torch.equal(value, other[name]) for name, value in own.items())
