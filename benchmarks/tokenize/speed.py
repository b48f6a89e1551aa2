"""Tokens per second: the whole stage, the tokenizer alone, and the usual `datasets.map`.

Each measurement is a process of its own: after `datasets` has forked, a tokenizer uses one thread.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import SPLITS, Document, read_documents
from moray.corpus.documents import write_dataset
from moray.provenance.manifest import read_manifest
from moray.tasks.language.sources.python_stdlib import modules
from moray.tasks.language.tokenize import tokenize
from moray.tasks.language.tokenizer import load_tokenizer

COPIES = 4


def contestants(tokenizer: Path, block_size: int, folder: Path) -> dict[str, Callable[[], float]]:
    """What is measured, by name; each returns tokens per second."""
    dataset = folder / "dataset"
    write_dataset(dataset, _rows(), "text", {"source": "benchmark"})
    return {name: partial(_in_a_process, name, dataset, tokenizer, block_size) for name in _NAMED}


def _rows() -> Iterator[tuple[str, Document]]:
    """The standard library some times over, so that what a stage costs once doesn't decide."""
    for copy in range(COPIES):
        for number, module in enumerate(modules()):
            held_out = copy == 0 and number % 100 == 0
            yield ("test" if held_out else "train"), Document(text=module["text"])


def _in_a_process(name: str, dataset: Path, tokenizer: Path, block_size: int) -> float:
    command = [sys.executable, "-m", __spec__.name, name, dataset, tokenizer, block_size]
    done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def _moray(dataset: Path, tokenizer: Path, block_size: int, folder: Path) -> float:
    """The stage, from Parquet to packed rows, digests and manifest on the disk."""
    cfg = {"format": "text", **result_keys(Data(block_size=block_size))}
    began = time.perf_counter()
    tokenize(dataset, tokenizer, folder / "tokens", cfg)
    seconds = time.perf_counter() - began
    splits = read_manifest(folder / "tokens")["splits"].values()
    # Pieces of a document overlap by a token, and a document has a stop token: a token a piece
    # that the tokenizer alone doesn't give.
    tokens: int = sum(split["tokens"] - split["segments"] for split in splits)
    return tokens / seconds


def _encode_batch(dataset: Path, tokenizer: Path, block_size: int, folder: Path) -> float:
    """All texts at once, in memory, without even taking the ids out."""
    texts = list(_texts(dataset))
    backend = load_tokenizer(tokenizer).backend_tokenizer
    began = time.perf_counter()
    encodings = backend.encode_batch(texts, add_special_tokens=False)
    return sum(map(len, encodings)) / (time.perf_counter() - began)


def _encode_in_parts(dataset: Path, tokenizer: Path, block_size: int, folder: Path) -> float:
    """In the parts that the stage works in, which give their memory back."""
    parts = [[d["text"] for d in documents] for documents in _documents(dataset)]
    backend = load_tokenizer(tokenizer).backend_tokenizer
    began = time.perf_counter()
    tokens = 0
    for part in parts:
        tokens += sum(map(len, backend.encode_batch(part, add_special_tokens=False)))
    return tokens / (time.perf_counter() - began)


def _map(
    dataset: Path, tokenizer: Path, block_size: int, folder: Path, num_proc: int | None
) -> float:
    """As the `run_clm.py` example of transformers does it; it packs without a loss mask."""
    loaded = load_tokenizer(tokenizer)
    rows = datasets.Dataset.from_dict({"text": list(_texts(dataset))})

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
        cache_file_name=str(folder / "a.arrow"),
    )
    packed = encoded.map(
        grouped, batched=True, num_proc=num_proc, cache_file_name=str(folder / "b.arrow")
    )
    seconds = time.perf_counter() - began
    return len(packed) * block_size / seconds


def _documents(dataset: Path) -> Iterable[list[Document]]:
    return chain.from_iterable(read_documents(dataset / f"{split}.parquet") for split in SPLITS)


def _texts(dataset: Path) -> Iterator[str]:
    return (document["text"] for documents in _documents(dataset) for document in documents)


_NAMED: dict[str, Callable[[Path, Path, int, Path], float]] = {
    "moray": _moray,
    "tokenizers, encode_batch alone": _encode_batch,
    "the same, 4 MB at a time": _encode_in_parts,
    "datasets.map with group_texts": partial(_map, num_proc=None),
    "the same, num_proc=2": partial(_map, num_proc=2),
}


if __name__ == "__main__":
    name, dataset, tokenizer, block_size = sys.argv[1:]
    with TemporaryDirectory() as temporary:
        print(_NAMED[name](Path(dataset), Path(tokenizer), int(block_size), Path(temporary)))
