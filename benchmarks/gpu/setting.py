"""What all contestants share: GPT-2, rows of the standard library, and prompts."""

from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import Document, write_dataset
from moray.corpus.sources.text_python_stdlib import modules
from moray.model.scratch import train_tokenizer
from moray.provenance.manifest import read_manifest, write_manifest
from moray.stages.tokenize import tokenize

_SIZES = {"block_size": 1024, "batch_size": 16, "num_prompts": 32, "new_tokens": 128}
_DRY_SIZES = {"block_size": 64, "batch_size": 4, "num_prompts": 4, "new_tokens": 8}
_DRY_MODEL = {"n_layer": 2, "n_embd": 64, "n_head": 2}
# The kernels of `varlen` and `flex` have no dropout.
_MODEL = {"attn_pdrop": 0.0}


def prepare(folder: Path, dry_run: bool) -> None:
    """Make a random GPT-2, or for a dry run a tiny one, and rows of the standard library."""
    texts = [module["text"] for module in modules()][:: 40 if dry_run else 1]
    sizes = _DRY_SIZES if dry_run else _SIZES
    tokenizer = train_tokenizer(texts, vocab_size=4096)
    torch.manual_seed(0)
    small = {**_DRY_MODEL, "vocab_size": len(tokenizer)} if dry_run else {}
    GPT2LMHeadModel(GPT2Config(**_MODEL, **small)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    write_manifest(folder / "model", architecture="gpt2", isolates_documents=True, **sizes)
    pairs = (
        ("validation" if number == 0 else "test" if number % 20 == 1 else "train", text)
        for number, text in enumerate(texts)
    )
    rows = ((split, Document(text=text)) for split, text in pairs)
    write_dataset(folder / "dataset", rows, "text", {"source": "benchmark"})
    cfg = {"format": "text", **result_keys(Data(block_size=sizes["block_size"]))}
    tokenize(folder / "dataset", folder / "model", folder / "tokens", cfg)


def sizes_of(folder: Path) -> dict[str, Any]:
    """Tokens of a row, rows of a batch, number of prompts, and tokens that continue each."""
    manifest = read_manifest(folder / "model")
    return {key: manifest[key] for key in _SIZES}
