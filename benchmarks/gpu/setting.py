"""What all contestants share: a model, rows of the standard library, and prompts."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import Document
from moray.corpus.documents import write_dataset
from moray.provenance.manifest import read_manifest, write_manifest
from moray.tasks.language.scratch import train_tokenizer
from moray.tasks.language.sources.python_stdlib import modules
from moray.tasks.language.tokenize import tokenize


@dataclass(frozen=True)
class Sizes:
    """Sizes of rows and prompts.

    Attributes:
        rows: rows of a step or a batch.
        micro_batch_size: rows of a forward pass in training.
        block_size: tokens of a row.
        steps: steps of a window.
        num_prompts: number of prompts.
        new_tokens: tokens of a prompt, and of its continuation.
    """

    rows: int
    micro_batch_size: int
    block_size: int
    steps: int = 20
    num_prompts: int = 32
    new_tokens: int = 128


_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
}
# GPT-2 as published, but without dropout of attention, which the kernels of `varlen` and `flex`
# don't have; Llama 3.2 1B and Llama 3.1 8B.
MODELS: dict[str, tuple[dict[str, Any], Sizes]] = {
    "tiny": (
        {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "attn_pdrop": 0.0},
        Sizes(rows=4, micro_batch_size=4, block_size=64, num_prompts=4, new_tokens=8),
    ),
    "gpt2": (
        {"model_type": "gpt2", "attn_pdrop": 0.0},
        Sizes(rows=16, micro_batch_size=16, block_size=1024),
    ),
    "llama-1b": (
        {
            **_LLAMA,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "head_dim": 64,
            "tie_word_embeddings": True,
        },
        Sizes(rows=16, micro_batch_size=4, block_size=1024, steps=10),
    ),
    "llama-8b": (
        {**_LLAMA, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32},
        Sizes(rows=4, micro_batch_size=1, block_size=4096, steps=4),
    ),
}


def prepare(folder: Path, name: str, rows: int | None) -> None:
    """Make a model with random weights in bf16, and rows of the standard library.

    Args:
        rows: rows of a step, all in one forward pass; None for those of the model.
    """
    config, sizes = MODELS[name]
    if rows is not None:
        sizes = replace(sizes, rows=rows, micro_batch_size=rows)
    texts = [module["text"] for module in modules()][:: 40 if name == "tiny" else 2]
    tokenizer = train_tokenizer(texts, vocab_size=4096)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**config), dtype=torch.bfloat16
        )
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    write_manifest(
        folder / "model",
        architecture=config["model_type"],
        isolates_documents=True,
        sizes=asdict(sizes),
    )
    pairs = (
        ("validation" if number == 0 else "test" if number % 5 == 1 else "train", text)
        for number, text in enumerate(texts)
    )
    documents = ((split, Document(text=text)) for split, text in pairs)
    write_dataset(folder / "dataset", documents, "text", {"source": "benchmark"})
    cfg = {"format": "text", **result_keys(Data(block_size=sizes.block_size))}
    tokenize(folder / "dataset", folder / "model", folder / "tokens", cfg)


def sizes_of(folder: Path) -> Sizes:
    """The sizes of what `prepare` made."""
    return Sizes(**read_manifest(folder / "model")["sizes"])
