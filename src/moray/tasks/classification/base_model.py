"""A base model for the labels of a dataset, with its tokenizer."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel

from moray.console import say
from moray.corpus.dataset import plain_text, read_documents
from moray.errors import UserError
from moray.model.folder import LOCAL
from moray.model.obtain import copy_folder, copy_unchanged
from moray.model.shapes import quantization_in
from moray.provenance.manifest import DATASET, new_folder
from moray.stages.base_model import Base
from moray.tasks.classification.classifier import (
    built,
    config_of,
    is_of_words,
    load_incomplete,
    names_of,
    set_labels,
)
from moray.tasks.classification.proofs import compare_base
from moray.tasks.classification.survey import OF_WORDS, REGRESSION
from moray.tasks.language.base_model import texts_of
from moray.tasks.language.scratch import llama_config, train_tokenizer

NEW_HEAD = "new_head"
"""The entry of a manifest that says that the output layer is random, so that it says nothing."""


def make(output: Path, cfg: dict[str, Any], source: Path | None, dataset: Path) -> Base:
    """Copy a model, or make one; if its labels aren't those of a dataset, with a new output layer.

    A tokenizer from scratch is trained on a dataset beside it.
    """
    description = json.loads((dataset / DATASET).read_text())
    # Pairs have no labels: their models give a number, the reward.
    problem, names = description.get("problem_type", REGRESSION), description.get("label_names", [])
    if source is None:
        texts = texts_of(dataset.with_name(cfg["tokenizer"]["train_on"]) / "train.parquet")
        tokenizer: Any = train_tokenizer(texts, cfg["tokenizer"]["vocab_size"])
        config: Any = llama_config(cfg, len(tokenizer))
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    else:
        copy = copy_unchanged if cfg.get("random_weights") else copy_folder
        copy(source, output)
        if method := quantization_in(output / "config.json", f"models.{output.name}"):
            raise UserError("model", f"its weights are quantized by {method}", "use plain ones")
        config = config_of(output)
        tokenizer = _tokenizer(output, problem == OF_WORDS)
    own = names_of(config)
    are_own = sorted(own) == sorted(names or ["0"])
    # Those of texts say nothing about words.
    are_own &= is_of_words(config) == (problem == OF_WORDS)
    set_labels(config, problem, own if are_own and names else names)
    # By the padding token, a decoder finds the last token of a text.
    config.pad_token_id = tokenizer.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cfg["seed"])
        if source is None or cfg.get("random_weights"):
            model, is_new = built(config, output), True
        else:
            model, is_new = _with_head(output, config, are_own)
    classes = f"{len(names)} classes" if names else "a number"
    kept = "new output layer for" if is_new else "its output layer is kept, for the same"
    say(f"model {output.name}: {kept} {classes}")
    # Nothing stays of what belongs to other classes.
    model.eval().save_pretrained(new_folder(output))
    tokenizer.save_pretrained(output)
    document = next(read_documents(dataset / "train.parquet"))[0]
    text = document.get("text") or plain_text(document)
    body = None if cfg.get("random_weights") else source
    return Base(
        model,
        partial(compare_base, output, body, model, text),
        {NEW_HEAD: True} if is_new else {},
        more=f", {len(names)} classes" if names else ", for a number",
    )


def _tokenizer(folder: Path, of_words: bool) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    if of_words and not _takes_words(tokenizer):
        # Else byte-level ones make other tokens of a list of words than of a text.
        other = AutoTokenizer.from_pretrained(folder, add_prefix_space=True, **LOCAL)
        tokenizer = other if _takes_words(other) else tokenizer
    # Language models have none.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token is None:
        raise UserError("model", "its tokenizer has no token to pad texts with", "add a pad_token")
    return tokenizer


def _takes_words(tokenizer: Any) -> bool:
    """Whether a tokenizer makes the same tokens of a list of words as of a text."""
    words = ["one", "two"]
    of_words: bool = (
        tokenizer(words, is_split_into_words=True)["input_ids"]
        == (tokenizer(" ".join(words))["input_ids"])
    )
    return of_words


def _with_head(folder: Path, config: Any, are_own: bool) -> tuple[PreTrainedModel, bool]:
    """The model of a folder with the output layer of a config, and whether that is random."""
    model, report = load_incomplete(folder, config, torch.float32)
    drawn = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    body = f"{model.base_model_prefix}."
    if lost := sorted(key for key in drawn if key.startswith(body) and "pooler" not in key):
        raise UserError("model", f"weights are missing, e.g. {lost[0]}", "use a complete model")
    if are_own:
        return model, bool(drawn)
    # The own output layer may have as many outputs, which mean something else.
    new = built(config, folder)
    setattr(new, new.base_model_prefix, model.base_model)
    return new, True
