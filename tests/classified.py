"""Texts with labels, and small classifiers that know their words, as files of a user."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedTokenizerFast

from moray.stages.base_model import base_model
from moray.stages.download import download
from moray.tasks.classification.tokenize_labelled import tokenize_labelled

# The words that decide on the label, which is a number, as files often have them.
OPINIONS = (("awful", "dull", "poor"), ("fine", "great", "superb"))
OTHERS = ("a", "film", "it", "play", "the", "was")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (*SPECIAL, *OTHERS, *(word for of in OPINIONS for word in of))
ROWS = {"format": "classification", "source": "files", "test_share": 0.3, "validation_share": 0.1}
_SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
_DECODER = {
    **_SIZES,
    "head_dim": 16,
    "num_key_value_heads": 2,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "pooler_dropout": 0.0}
ENCODERS: dict[str, Callable[[], Any]] = {
    "BERT": lambda: BertConfig(**_SIZES),
    "RoBERTa": lambda: hf.RobertaConfig(**_SIZES),
    "XLM-R": lambda: hf.XLMRobertaConfig(**_SIZES),
    "DistilBERT": lambda: hf.DistilBertConfig(
        vocab_size=len(WORDS),
        dim=32,
        hidden_dim=64,
        n_layers=2,
        n_heads=2,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    ),
    "DeBERTa v2": lambda: hf.DebertaV2Config(**_SIZES, **_DEBERTA),
    "DeBERTa v3": lambda: hf.DebertaV2Config(
        **_SIZES, **_DEBERTA, position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True
    ),
    "ELECTRA": lambda: hf.ElectraConfig(**_SIZES, embedding_size=16),
    "ModernBERT": lambda: hf.ModernBertConfig(
        **{key: value for key, value in _SIZES.items() if "dropout" not in key},
        local_attention=8,
        bos_token_id=2,
        cls_token_id=2,
        eos_token_id=3,
        sep_token_id=3,
    ),
}
DECODERS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: hf.LlamaConfig(**_DECODER),
    "Qwen2": lambda: hf.Qwen2Config(**_DECODER),
    "Qwen3": lambda: hf.Qwen3Config(**_DECODER),
    "Gemma 2": lambda: hf.Gemma2Config(**_DECODER),
    "Gemma 3": lambda: hf.Gemma3TextConfig(**_DECODER),
    "Phi": lambda: hf.PhiConfig(**_DECODER),
    "Phi-3": lambda: hf.Phi3Config(**_DECODER),
}


def opinions(count: int = 240) -> list[dict[str, Any]]:
    """Rows with a text, in which one word is an opinion, and a label."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        label = draw.randrange(2)
        words = [*draw.choices(OTHERS, k=draw.randint(2, 9)), draw.choice(OPINIONS[label])]
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": label})
    return rows


def with_labels(label: Callable[[list[str]], Any], count: int = 240) -> list[dict[str, Any]]:
    """The same texts with other labels, by their words."""
    return [{**row, "label": label(row["text"].split())} for row in opinions(count)]


def things(words: list[str]) -> list[str]:
    """What a text is about: several labels, or none."""
    return [word for word in ("film", "play") if word in words]


def degree(words: list[str]) -> float:
    """How good a text finds something, as a number with a fraction."""
    good = sum(word in OPINIONS[1] for word in words)
    return good * 2.5 + words.count("film") / 4


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON Lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_reviews(file: Path) -> None:
    """Write opinions with their labels."""
    write_rows(file, opinions())


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of the words, as that of a BERT."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
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


def write_classifier(folder: Path, config: Any) -> None:
    """Write a classifier of two classes, which are others, and a tokenizer."""
    write_tokenizer(folder)
    if "type_vocab_size" not in config.to_dict():
        without_types(folder)
    config.id2label = {0: "no", 1: "yes"}
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            # So that attention is sharp.
            weight.mul_(4 if weight.dim() > 1 else 1)
    model.save_pretrained(folder)


def without_types(folder: Path) -> None:
    """Have the tokenizer of a folder not tell two texts apart."""
    file = folder / "tokenizer_config.json"
    content = json.loads(file.read_text())
    content["model_input_names"] = ["input_ids", "attention_mask"]
    file.write_text(json.dumps(content))


def write_bert(folder: Path) -> None:
    """Write a BERT."""
    write_tokenizer(folder)
    torch.manual_seed(1)
    hf.BertForSequenceClassification(BertConfig(**_SIZES)).save_pretrained(folder)


def prepare(
    folder: Path, rows: Iterable[Mapping[str, Any]], config: Any, size: int = 16, **keys: Any
) -> Path:
    """Make `dataset`, `model` and `labelled` of rows and a config in a folder.

    Args:
        keys: of the dataset's section.
    """
    write_rows(folder / "rows.jsonl", rows)
    files = {"train": [str(folder / "rows.jsonl")]}
    section = {**ROWS, "path": str(folder / "rows.jsonl"), **keys}
    download(folder / "dataset", section, files)
    write_classifier(folder / "given", config)
    prepare_model(folder)
    cfg = {"block_size": size, "format": "classification"}
    tokenize_labelled(folder / "dataset", folder / "model", folder / "labelled", cfg)
    return folder


def prepare_model(folder: Path, **keys: Any) -> None:
    """Make `model` of the folder `given`, for the labels of `dataset`."""
    cfg = {"source": "path", "path": str(folder / "given"), "classes_of": "dataset", "seed": 0}
    base_model(folder / "model", cfg | keys, folder / "dataset", modality="labelled text")
