"""Words with tags, and small models that know their pieces, as files of a user."""

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from classified import SPECIAL, WORDS, without_types, write_rows
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForTokenClassification, PreTrainedTokenizerFast

from moray.stages.base_model import base_model
from moray.stages.download import download
from moray.tasks.token_classification.tokenize_labelled import tokenize_labelled

ROWS = {
    "format": "token-classification",
    "source": "files",
    "test_share": 0.3,
    "validation_share": 0.1,
}
# As many as the words of other small models. `new` and `york` are a place only together.
PIECES = (
    *SPECIAL,
    "ada",
    "bob",
    "##son",
    "rome",
    "new",
    "york",
    "in",
    "is",
    "saw",
    "the",
    ".",
    "s",
)
assert len(PIECES) == len(WORDS)
TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
PARTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("ada",), ("B-PER",)),
    (("bob", "adason"), ("B-PER", "I-PER")),
    (("bobson",), ("B-PER",)),
    (("rome",), ("B-LOC",)),
    (("new", "york"), ("B-LOC", "I-LOC")),
    *(((word,), ("O",)) for word in ("new", "in", "is", "saw", "the", ".")),
)


def sentences(count: int = 240, most: int = 5) -> list[dict[str, Any]]:
    """Rows with words and their tags."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        parts = draw.choices(PARTS, k=draw.randint(2, most))
        words, tags = ([one for part in parts for one in part[side]] for side in (0, 1))
        rows.append({"tokens": words, "tags": tags})
    return rows


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of the pieces, as that of a BERT."""
    vocabulary = {word: number for number, word in enumerate(PIECES)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=inputs, **names
    ).save_pretrained(folder)


def write_tagger(folder: Path, config: Any) -> None:
    """Write a model of two tags, which are others, and a tokenizer."""
    write_tokenizer(folder)
    if "type_vocab_size" not in config.to_dict():
        without_types(folder)
    config.id2label = {0: "no", 1: "yes"}
    # Of decoders, which have a tenth by default.
    config.classifier_dropout = 0.0
    torch.manual_seed(1)
    model = AutoModelForTokenClassification.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            # So that attention is sharp.
            weight.mul_(4 if weight.dim() > 1 else 1)
    model.save_pretrained(folder)


def prepare(
    folder: Path, rows: Iterable[Mapping[str, Any]], config: Any, size: int = 16, **keys: Any
) -> Path:
    """Make `dataset`, `model` and `labelled` of rows and a config in a folder.

    Args:
        keys: of the dataset's section.
    """
    write_rows(folder / "rows.jsonl", rows)
    files = {"train": [str(folder / "rows.jsonl")]}
    download(folder / "dataset", {**ROWS, "path": str(folder / "rows.jsonl"), **keys}, files)
    write_tagger(folder / "given", config)
    prepare_model(folder)
    cfg = {"block_size": size, "format": "token-classification"}
    tokenize_labelled(folder / "dataset", folder / "model", folder / "labelled", cfg)
    return folder


def prepare_model(folder: Path, **keys: Any) -> None:
    """Make `model` of the folder `given`, for the tags of `dataset`."""
    cfg = {"source": "path", "path": str(folder / "given"), "classes_of": "dataset", "seed": 0}
    base_model(folder / "model", cfg | keys, folder / "dataset", modality="labelled text")
