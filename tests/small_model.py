"""A model's section of the config, for runs that take seconds, and what such a run reads."""

from pathlib import Path
from typing import Any

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import Document, write_dataset
from moray.corpus.sources.text_python_stdlib import functions
from moray.stages.base_model import base_model
from moray.stages.tokenize import tokenize

MODEL = {
    "source": "scratch",
    "architecture": "llama",
    "tokenizer": {"train_on": "functions", "vocab_size": 300},
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": None,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "seed": 0,
}


def write_small(folder: Path, section: dict[str, Any] = MODEL) -> None:
    """Write `dataset`, functions, `model`, a Hugging Face folder, and `tokens`, their store."""
    rows = [row for row, _ in zip(functions(), range(80), strict=False)]
    splits = ["test", "validation", *["train"] * 6]
    pairs = ((splits[number % 8], Document(**row)) for number, row in enumerate(rows))
    write_dataset(folder / "dataset", pairs, "prompt-completion", {"source": "test"})
    base_model(folder / "model", section, folder / "dataset")
    cfg = {"format": "prompt-completion", **result_keys(Data(block_size=64))}
    tokenize(folder / "dataset", folder / "model", folder / "tokens", cfg)
