"""A folder as transformers reads it by itself: its tokenizer, stop tokens and weights."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from moray.model.shapes import weight_files
from moray.proofs.budget import TOO_LARGE, num_affordable
from moray.proofs.comparison import Comparison, transformers_version

# Spaces at both ends and in rows, line breaks, letters with accents, other scripts, code.
TEXT = " Hello,  world!\n\n\tnaïve “Größe” 3.14 20481 日本語 🐍\ndef f(a_b): return a_b['x'] "
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
_SCALE = "_scale_inv"
_FEWEST_TOKENS = 8


def compare_base(
    folder: Path, cfg: dict[str, Any], source: Path | None, model: Any, seconds: float
) -> Iterator[Comparison]:
    """Compare a base model with the folder that it was copied from.

    Args:
        folder: of the base model.
        cfg: its section of the config.
        source: the folder; None for a model from scratch.
        model: as loaded from `folder`, in evaluation mode.
        seconds: that obtaining it took.
    """
    read = AutoTokenizer.from_pretrained(folder, **_LOCAL)
    if source:
        original = AutoTokenizer.from_pretrained(source, **_LOCAL)
        yield _of("stop token", read.eos_token, cfg.get("eos_token") or original.eos_token)
        yield _of("BOS token", read.bos_token, original.bos_token)
        if not any(word in TEXT for word in cfg.get("new_tokens") or ()):
            if type(read) is type(original):
                yield _of("tokens of a text", *(_ids(one, TEXT) for one in (read, original)))
            yield from _compare_file(source / "tokenizer.json", read)
        yield _of("chat template", read.chat_template, original.chat_template)
    if words := cfg.get("new_tokens"):
        new_ids = read(list(words), add_special_tokens=False)["input_ids"]
        lengths = [len(ids) for ids in new_ids]
        yield _of("number of tokens in each new token", lengths, [1] * len(words))
    whole = source if source and not words and not cfg.get("random_weights") else folder
    yield from _compare_scales(whole, folder)
    if hasattr(model.config, "quantization_config") or _is_quantized(whole):
        whole = folder
    most = getattr(model.config, "max_position_embeddings", 512)
    tokens = _ids(read, TEXT)[: min(most, num_affordable(folder, seconds, model.device))]
    if len(tokens) < _FEWEST_TOKENS:
        yield Comparison("loss of a text", skipped=TOO_LARGE)
    else:
        yield _compare_text_loss(model, whole, tokens)


def _compare_file(file: Path, read: Any) -> Iterator[Comparison]:
    """Compare the tokens of a text with those of the file by itself, without a class around it."""
    if not file.is_file():
        return
    ids = read(TEXT, add_special_tokens=False)["input_ids"]
    alone = Tokenizer.from_file(str(file))
    alone.no_truncation()
    alone.no_padding()
    plain = alone.encode(TEXT, add_special_tokens=False).ids
    library = f"tokenizers {version('tokenizers')}"
    yield Comparison(f"tokens of a text by {file.name}", ids, plain, library, advisory=True)


def compare_tokenizer(folder: Path, tokenizer: Any) -> list[Comparison]:
    """Compare the tokenizer that a stage used with the one that its folder has."""
    read = AutoTokenizer.from_pretrained(folder, **_LOCAL)
    return [
        _of("stop token", tokenizer.eos_token, read.eos_token),
        _of("BOS token", tokenizer.bos_token, read.bos_token),
        _of("tokens of a text", *(_ids(one, TEXT) for one in (tokenizer, read))),
        _of("chat template", tokenizer.chat_template, read.chat_template),
    ]


def compare_stops(folder: Path, stops: Sequence[int]) -> Comparison:
    """Compare the tokens that were trained to stop with those at which `generate` stops."""
    read = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    plain = read if isinstance(read, list) else [] if read is None else [read]
    return _of("stop tokens of generation", sorted(stops), sorted(plain))


def _compare_text_loss(model: Any, folder: Path, tokens: Sequence[int]) -> Comparison:
    """Compare the loss of a text by a loaded model with that of the model in a folder."""
    plain = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, **_LOCAL
    ).eval()
    exact = model.dtype == torch.float32
    here, there = (_loss(one, tokens) for one in (model, plain))
    tolerance = 1e-4 if exact else 1e-2
    return Comparison("loss of a text", here, there, transformers_version(), tolerance=tolerance)


@torch.no_grad()
def _loss(model: Any, tokens: Sequence[int]) -> float:
    ids = torch.tensor([list(tokens)])
    return float(F.cross_entropy(model(input_ids=ids).logits[0, :-1].float(), ids[0, 1:]))


def _compare_scales(source: Path, folder: Path) -> Iterator[Comparison]:
    """Compare a weight in FP8, times its scales, with the plain weight of the same name."""
    source_tensors, plain = _tensors(source), _tensors(folder)
    name = next((name for name in plain if f"{name}{_SCALE}" in source_tensors), None)
    if source == folder or name is None:
        return
    weight, scale = (_tensor(source_tensors, one).float() for one in (name, f"{name}{_SCALE}"))
    if scale.dim() == weight.dim():
        block = [-(-side // parts) for side, parts in zip(weight.shape, scale.shape, strict=True)]
        # The last block of a side can be a part of one, so blocks have a power of two.
        for side, length in enumerate(block):
            whole = 1 << (length - 1).bit_length()
            scale = scale.repeat_interleave(whole, side)
        scale = scale[tuple(slice(side) for side in weight.shape)]
    here = float(_tensor(plain, name).float().norm())
    expected = float((weight * scale).norm())
    yield Comparison(f"norm of {name}", here, expected, "safetensors", tolerance=1e-2)


def _tensors(folder: Path) -> dict[str, Path]:
    """The files of the weights in a folder, by name."""
    files: dict[str, Path] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as weights:
            files |= dict.fromkeys(weights.keys(), file)
    return files


def _tensor(files: dict[str, Path], name: str) -> Tensor:
    with safe_open(files[name], framework="pt") as weights:
        tensor: Tensor = weights.get_tensor(name)
    return tensor


def _is_quantized(folder: Path) -> bool:
    return '"quantization_config"' in (folder / "config.json").read_text()


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, truncation=False, padding=False)["input_ids"]
    return ids


def _of(what: str, here: Any, plain: Any) -> Comparison:
    return Comparison(what, here, plain, transformers_version())
