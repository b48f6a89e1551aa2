"""A model's section of the config, for runs that take seconds, and what such runs read."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from jobs import execution_of

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.config.tasks import FormatName
from moray.corpus.dataset import Document
from moray.corpus.documents import write_dataset
from moray.stages.base_model import base_model
from moray.tasks.language.sources.python_stdlib import functions
from moray.tasks.language.tokenize import tokenize
from moray.tasks.preference.reference import reference

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
# Of a preference run's reference.
EXECUTION = execution_of("evaluate")
HELD = {"precision": "fp32", "base_dtype": "fp32", "quantize_base": None}


def recipe(format: str = "text", **keys: object) -> dict[str, Any]:
    """What a store of tokens is made by, with rows of 16 tokens unless a key says otherwise."""
    return {"format": format, **result_keys(Data.model_validate({"block_size": 16} | keys))}


def write_small(folder: Path, section: dict[str, Any] = MODEL) -> None:
    """Write `dataset`, functions, `model`, a Hugging Face folder, and `tokens`, their store."""
    _write_functions(folder / "dataset", 80, ["test", "validation", *["train"] * 6])
    base_model(folder / "model", section, folder / "dataset")
    cfg = {"format": "prompt-completion", **result_keys(Data(block_size=64))}
    tokenize(folder / "dataset", folder / "model", folder / "tokens", cfg)


def write_many_windows(folder: Path) -> None:
    """Write a dataset of 120 functions, most of them to train, in row groups of a few each.

    A step has rows of several groups of such windows.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moray.corpus.writer._GROUP_BYTES", 2000)
        _write_functions(folder, 120, ["test", "validation", *["train"] * 8])


def write_stores(folder: Path, model: Path, data: Data, format: FormatName = "preference") -> None:
    """Make the stores `pairs` and `reference` of the `dataset` in a folder."""
    cfg = {"format": format, **result_keys(data)}
    tokenize(folder / "dataset", model, folder / "pairs", cfg)
    make_reference(folder, model, folder / "reference")


def make_reference(folder: Path, model: Path, output: Path, **execution: Any) -> None:
    """Make a reference of the store `pairs` in a folder."""
    reference("name", model, folder / "pairs", output, HELD, EXECUTION | execution)


def _write_functions(folder: Path, count: int, splits: list[str]) -> None:
    """Write so many functions to these splits in turn."""
    rows = zip(itertools.cycle(splits), itertools.islice(functions(), count), strict=False)
    pairs = ((split, Document(**row)) for split, row in rows)
    write_dataset(folder, pairs, "prompt-completion", {"source": "test"})
