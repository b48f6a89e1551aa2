"""Language models by plain transformers: a document at a time, without packing or adapters' code.

Stored rows are read by their flags alone: 1 marks a trained token, 2 the first token of a piece.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from moray.proofs.figures import Figures

Piece = tuple[list[int], list[bool]]
"""Tokens of a document, or of a part that doesn't see the rest, and which of them are trained."""

_TRAINED, _FIRST = 1, 2
_LOCAL = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}


def pieces_of(rows: NDArray[np.void]) -> Iterator[Piece]:
    """Each piece in some rows that has a trained token, up to its last one."""
    for row in rows:
        starts = np.flatnonzero(row["flags"] & _FIRST)
        ends = [*starts[1:].tolist(), len(row["flags"])]
        for start, end in zip(starts.tolist(), ends, strict=True):
            mask = (row["flags"][start:end] & _TRAINED).astype(bool)
            if mask.any():
                # Tokens behind the last trained one have no loss.
                last = int(np.flatnonzero(mask)[-1]) + 1
                yield row["tokens"][start : start + last].tolist(), mask[:last].tolist()


def load(folder: Path, bits: str | None = None, device: torch.device | None = None) -> Any:
    """A model or an adapter on its base, as a user would load it, in fp32 and evaluation mode."""
    device = device or torch.device("cpu")
    base = _base_of(folder)
    if base is not None:
        # Takes over a second to import.
        from peft import PeftModel

        whole: Any = load(base, bits, device)
        if hasattr(whole, "merge_and_unload"):
            # PEFT would take a second adapter for another first one.
            whole = whole.merge_and_unload()
        return PeftModel.from_pretrained(whole, str(folder)).eval()
    keywords: dict[str, Any] = {}
    if bits == "4bit":
        keywords["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.float32,
        )
        # The model can't be moved afterwards.
        keywords["device_map"] = {"": device}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **_LOCAL, **keywords)
    if bits == "4bit":
        # Only the values count: the library's product for CPUs refuses narrow layers.
        model.dequantize()
        _quantize_experts(model.float())
        return model.eval()
    return model.eval().to(device)


def _quantize_experts(model: Any) -> None:
    """Quantize what transformers leaves whole, since experts are no layers, by bitsandbytes."""
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    for module in [*model.modules()]:
        for name, weight in [*module.named_parameters(recurse=False)]:
            if "Expert" in type(module).__name__ and weight.dim() == 3:
                replace_parameter_4bit(module, name)


def _base_of(folder: Path) -> Path | None:
    """The base of a folder that has only an adapter, which its manifest names."""
    manifest = folder / "manifest.json"
    if (folder / "config.json").is_file() or not manifest.is_file():
        return None
    reference = json.loads(manifest.read_text()).get("base")
    return reference and Path(os.path.normpath(folder.absolute() / reference["path"]))


def log_probabilities(model: Any, tokens: Sequence[int], mask: Sequence[bool]) -> torch.Tensor:
    """Log-probabilities of a document's masked tokens after those before them, nats, fp32."""
    ids = torch.tensor([tokens], device=model.device)
    chosen = torch.tensor(mask[1:], device=model.device)
    logits = model(input_ids=ids).logits[0, :-1].float()
    return -F.cross_entropy(logits[chosen], ids[0, 1:][chosen], reduction="none")


def losses(model: Any, rows: NDArray[np.void]) -> Iterator[torch.Tensor]:
    """The sum of the losses of each document in some rows, nats, shape ()."""
    for tokens, mask in pieces_of(rows):
        yield -log_probabilities(model, tokens, mask).sum()


def figures_of(
    model: Any,
    rows: NDArray[np.void],
    with_gradient: bool = False,
    losses: Callable[[Any, NDArray[np.void]], Iterator[torch.Tensor]] = losses,
) -> Figures:
    """The loss of rows, and the norm of its gradient by all weights.

    Args:
        losses: the sums of the losses of documents.
    """
    if with_gradient and hasattr(model, "merge_and_unload"):
        # A run without an adapter of its own trains what an earlier one was merged into.
        model = model.merge_and_unload().requires_grad_(True)
    # A document's first token follows nothing, so it has no loss.
    count = sum(sum(mask[1:]) for _, mask in pieces_of(rows))
    total = 0.0
    with torch.set_grad_enabled(with_gradient):
        for loss in losses(model, rows):
            mean = loss / count
            if with_gradient:
                torch.autograd.backward(mean)
            total += mean.item()
    if not with_gradient:
        return Figures(total)
    squares = (
        float(p.grad.double().square().sum()) for p in _distinct(model) if p.grad is not None
    )
    return Figures(total, math.sqrt(sum(squares)))


def _distinct(model: Any) -> list[torch.nn.Parameter]:
    return list({id(parameter): parameter for parameter in model.parameters()}.values())


def draws(model: Any) -> bool:
    """Whether a model draws something in training, as dropout does."""
    config = model.config.get_text_config().to_dict()
    return any(
        isinstance(value, float) and value > 0
        for key, value in config.items()
        if "drop" in key or "jitter" in key
    )
