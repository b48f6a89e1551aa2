"""How much of a training is left after its weights were rounded to 16 bits."""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from moray.model.shapes import weight_files

# Number of matrices, spread over the model, and of rows of each.
_MATRICES, _ROWS = 8, 256
# The weights of a block. Most rows of embeddings don't change anyway, as their tokens don't occur.
_IN_BLOCK = re.compile(r"\.\d+\.")
_ADAPTED = re.compile(r"base_model\.model\.(.+)\.lora_A\.weight")


def share_unchanged(folder: Path, start: Path, dtype: torch.dtype) -> float | None:
    """The share of the trained weights that are those of the start again.

    A step that is smaller than half the distance between two numbers of `dtype` is lost, and in
    bf16 they are up to 0.8 % apart.

    Args:
        folder: an exported model; where it has adapters beside it, only what they change counts.
        start: the model that the training began with, of any type.
        dtype: of the weights in `folder`.

    Returns:
        A share of a sample of the matrices in blocks; None if there are none with the same name.
    """
    with ExitStack() as files:
        after, before = _weights(folder, files), _weights(start, files)
        names = sorted(_trained_names(folder, after.keys() & before.keys()))
        slices = ([weights[name].get_slice(name) for weights in (after, before)] for name in names)
        pairs = [
            (one, other)
            for one, other in slices
            if len(one.get_shape()) > 1 and one.get_shape() == other.get_shape()
        ]
        equal = total = 0
        # Blocks have as many matrices each, so an even step could meet the same one in all.
        for one, other in pairs[:: len(pairs) // _MATRICES | 1]:
            part = one[:_ROWS]
            equal += int((part == other[:_ROWS].to(dtype)).sum())
            total += part.numel()
    return equal / total if total else None


def _weights(folder: Path, files: ExitStack) -> dict[str, Any]:
    """The open file that each weight is in, by its name."""
    file_of: dict[str, Any] = {}
    for path in weight_files(folder):
        file = files.enter_context(safe_open(path, framework="pt"))
        file_of |= dict.fromkeys(file.keys(), file)
    return file_of


def _trained_names(folder: Path, names: Iterable[str]) -> Iterator[str]:
    adapter = folder / "adapter/adapter_model.safetensors"
    if not adapter.is_file():
        yield from filter(_IN_BLOCK.search, names)
        return
    with safe_open(adapter, framework="pt") as weights:
        modules = {match[1] for key in weights.keys() if (match := _ADAPTED.fullmatch(key))}  # noqa: SIM118
    yield from (name for name in names if name.removesuffix(".weight") in modules)
