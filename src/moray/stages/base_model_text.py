"""A base model of text, with its tokenizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from moray.corpus.dataset import num_groups, plain_text, read_group
from moray.model.isolation import isolates_documents
from moray.model.load import load_model
from moray.model.obtain import copy_folder
from moray.model.scratch import save_llama, train_tokenizer
from moray.tasks.language.tokenizer import load_tokenizer

# 4 MB each. A tokenizer hardly changes with more, and training on them takes a minute.
_GROUPS_TO_LEARN_FROM = 64


def make(
    output: Path, cfg: dict[str, Any], source: Path | None, dataset: Path | None
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Copy a model, or make one from scratch; returns it, and more entries of its manifest."""
    if source:
        copy_folder(source, output)
    elif dataset:
        texts = _texts(dataset / "train.parquet")
        save_llama(output, train_tokenizer(texts, cfg["tokenizer"]["vocab_size"]), cfg)
    else:
        raise ValueError("a model from scratch needs a dataset for its tokenizer")
    # Load it once, so that errors show up here rather than after the dataset's download.
    load_tokenizer(output)
    model = load_model(output)
    return model, {"isolates_documents": isolates_documents(model)}


def _texts(file: Path) -> Iterator[str]:
    """The documents of evenly spaced row groups of a large file; all documents of a small one."""
    groups = num_groups(file)
    for group in range(0, groups, -(-groups // _GROUPS_TO_LEARN_FROM)):
        yield from map(plain_text, read_group(file, group))
