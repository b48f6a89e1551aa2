"""Tokens per second: the whole stage, the tokenizer alone, and the usual `datasets.map`."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import datasets

from moray.corpus.dataset import read_documents
from moray.provenance.manifest import read_manifest
from moray.stages.download import download
from moray.stages.tokenize import tokenize
from moray.tokens.tokenizer import load_tokenizer

DATASET = {"source": "python-stdlib", "format": "text", "validation_share": 0, "test_share": 0.01}


def contestants(tokenizer: Path, block_size: int, folder: Path) -> dict[str, Callable[[], float]]:
    """What is measured, by name; each returns tokens per second."""
    dataset = folder / "dataset"
    download(dataset, DATASET)
    texts = [
        document["text"]
        for split in ("train", "test")
        for documents in read_documents(dataset / f"{split}.parquet")
        for document in documents
    ]
    return {
        "moray": partial(_moray, dataset, tokenizer, block_size, folder / "tokens"),
        "tokenizers, encode_batch alone": partial(_encode_batch, tokenizer, texts),
        "datasets.map with group_texts": partial(_map, tokenizer, texts, block_size, folder, None),
        "the same, num_proc=2": partial(_map, tokenizer, texts, block_size, folder, 2),
    }


def _moray(dataset: Path, tokenizer: Path, block_size: int, output: Path) -> float:
    """The stage, from Parquet to packed rows, digests and manifest on the disk."""
    cfg = {
        "block_size": block_size,
        "chat_template": None,
        "format": "text",
        "long_documents": "split",
        "tokenize": "ahead",
    }
    began = time.perf_counter()
    tokenize(dataset, tokenizer, output, cfg)
    seconds = time.perf_counter() - began
    splits = read_manifest(output)["splits"].values()
    # Pieces of a document overlap by a token, and each has a first token and a stop token more:
    # these aren't the tokenizer's work.
    return (sum(s["tokens"] - s["segments"] for s in splits)) / seconds


def _encode_batch(tokenizer: Path, texts: list[str]) -> float:
    backend = load_tokenizer(tokenizer).backend_tokenizer
    began = time.perf_counter()
    encodings = backend.encode_batch(texts, add_special_tokens=False)
    seconds = time.perf_counter() - began
    return sum(len(encoding.ids) for encoding in encodings) / seconds


def _map(
    tokenizer: Path, texts: list[str], block_size: int, folder: Path, num_proc: int | None
) -> float:
    """As the `run_clm.py` example of transformers does it; it packs without a loss mask."""
    loaded = load_tokenizer(tokenizer)
    cache = folder / "map"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"text": texts})

    def tokenized(batch: dict[str, Any]) -> Any:
        return loaded(batch["text"])

    def grouped(batch: dict[str, Any]) -> dict[str, Any]:
        joined = {name: list(chain(*batch[name])) for name in batch}
        length = len(joined["input_ids"]) // block_size * block_size
        cut = {
            name: [values[i : i + block_size] for i in range(0, length, block_size)]
            for name, values in joined.items()
        }
        cut["labels"] = cut["input_ids"].copy()
        return cut

    began = time.perf_counter()
    encoded = rows.map(
        tokenized,
        batched=True,
        num_proc=num_proc,
        remove_columns=["text"],
        cache_file_name=str(cache / "a.arrow"),
    )
    packed = encoded.map(
        grouped, batched=True, num_proc=num_proc, cache_file_name=str(cache / "b.arrow")
    )
    seconds = time.perf_counter() - began
    return len(packed) * block_size / seconds
