"""A base model of text, with its tokenizer, to which it can add tokens."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from moray.config.user_files import ADAPTER_FILES
from moray.console import say
from moray.corpus.dataset import num_groups, plain_text, read_group
from moray.errors import UserError
from moray.model.folder import base_reference, stored_dtype
from moray.model.load import load_config, load_model
from moray.model.obtain import copy_folder, copy_unchanged
from moray.model.shapes import NEW_TOKENS, quantization_in, shapes_in
from moray.provenance.manifest import write_manifest
from moray.stages.base_model import Base
from moray.tasks.language.dequantize import dequantize
from moray.tasks.language.isolation import compute_in_fp32, isolates_documents
from moray.tasks.language.proofs.folder import compare_base
from moray.tasks.language.scratch import save_llama, save_random_weights, train_tokenizer
from moray.tasks.language.tokenizer import load_tokenizer, stop_token_ids
from moray.tasks.language.tokenizer_files import save_tokenizer, use_tokenizer_json

# 4 MB each. A tokenizer hardly changes with more, and training on them takes a minute.
_GROUPS_TO_LEARN_FROM = 64
_COLUMNS_AT_ONCE = 128


def make(output: Path, cfg: dict[str, Any], source: Path | None, dataset: Path | None) -> Base:
    """Copy a model, or make one from scratch."""
    path = f"models.{output.name}"
    if source and cfg.get("random_weights"):
        copy_unchanged(source, output)
        save_random_weights(output, cfg["seed"])
    elif source:
        copy_folder(source, output)
        if method := quantization_in(output / "config.json", path):
            say(f"model {output.name}: dequantizing the weights ({method})")
            dequantize(output, method)
    elif dataset:
        texts = texts_of(dataset / "train.parquet")
        save_llama(output, train_tokenizer(texts, cfg["tokenizer"]["vocab_size"]), cfg)
    else:
        raise ValueError("a model from scratch needs a dataset for its tokenizer")
    # Load it once, so that errors show up here rather than after the dataset's download.
    tokenizer = load_tokenizer(output)
    if tokenizer_class := use_tokenizer_json(output, tokenizer):
        tokenizer = load_tokenizer(output)
        say(
            f"model {output.name}: in this version of transformers, {tokenizer_class} makes other "
            "tokens than tokenizer.json, so the copy names PreTrainedTokenizerFast, which reads "
            "the file"
        )
    if words := cfg.get("new_tokens"):
        add_tokens(output, tokenizer, words, f"{path}.new_tokens")
    if word := cfg.get("eos_token"):
        set_eos_token(output, tokenizer, word, f"{path}.eos_token")
    model = load_model(output, stored_dtype(output))
    _check_vocabulary(tokenizer, model, path)
    model_type, text_type = load_config(output).model_type, model.config.model_type
    if model_type != text_type:
        part = f"only the part for text ({text_type}) of {model_type}"
        say(f"model {output.name}: {part} is loaded and exported")
    elif unused := _unused(model, output):
        part = f"weights that it doesn't compute with ({len(unused)}, e.g. {unused[0]})"
        say(f"model {output.name}: {text_type} leaves out {part}; they aren't exported either")
    if getattr(model.config.get_text_config(), "output_router_logits", False):
        say(
            f"model {output.name}: the load-balancing loss of its routers is part of the loss only "
            "with train.router_aux_loss: true"
        )
    with compute_in_fp32(model):
        facts: dict[str, Any] = {"isolates_documents": isolates_documents(model)}
    folder = output
    if adapter := cfg.get("adapter"):
        folder = put_adapter(output, Path(adapter), cfg, model, tokenizer)
        facts["base"] = base_reference(output, folder)
    return Base(model, partial(compare_base, folder, cfg, source, model), facts)


def put_adapter(
    output: Path,
    adapter: Path,
    cfg: dict[str, Any],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
) -> Path:
    """Make the model in a folder the base of an adapter, as a run exports one without its base.

    Args:
        output: has the model, which is moved to a folder in it.
        adapter: folder of the adapter.
        model: loaded from `output`.

    Returns:
        The folder of the base.

    Raises:
        UserError: if the adapter isn't one of this model.
    """
    # Takes over a second to import.
    from moray.model.adapter import check_adapter

    check_adapter(model, adapter, f"models.{output.name}.adapter")
    base = output / "base"
    files = [*output.iterdir()]
    base.mkdir()
    for file in files:
        file.rename(base / file.name)
    write_manifest(base, model={key: cfg[key] for key in cfg if key != "adapter"})
    for name in ADAPTER_FILES:
        shutil.copyfile(adapter / name, output / name)
    save_tokenizer(tokenizer, output)
    stops = stop_token_ids(tokenizer, base)
    GenerationConfig(eos_token_id=stops[0] if len(stops) == 1 else stops).save_pretrained(output)
    return base


def _unused(model: PreTrainedModel, folder: Path) -> list[str]:
    """The names of stored weights that transformers leaves out, such as those that predict several
    tokens; masks and other constants don't count.
    """
    patterns = model._keys_to_ignore_on_load_unexpected or ()
    names = (name for name in shapes_in(folder) if name.endswith(".weight"))
    return [name for name in names if any(re.search(pattern, name) for pattern in patterns)]


def _check_vocabulary(
    tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, path: str
) -> None:
    """Check that each token of a tokenizer has an embedding."""
    num_embeddings = len(model.get_input_embeddings().weight)
    if beyond := [word for word, id in tokenizer.get_vocab().items() if id >= num_embeddings]:
        raise UserError(
            path,
            f"{len(beyond)} tokens of the tokenizer have no embedding, e.g. {min(beyond)!r}; the "
            f"model has {num_embeddings:,}",
            f"add them with {path}.new_tokens",
        )


def texts_of(file: Path) -> Iterator[str]:
    """The documents of evenly spaced row groups of a large file; all documents of a small one."""
    groups = num_groups(file)
    for group in range(0, groups, -(-groups // _GROUPS_TO_LEARN_FROM)):
        yield from map(plain_text, read_group(file, group))


def add_tokens(
    folder: Path, tokenizer: PreTrainedTokenizerFast, words: list[str], key: str
) -> None:
    """Add special tokens to the model in a folder.

    Their rows begin as the mean of the others, so that no new token is likelier than those at
    first. Source: Hewitt, "Initializing New Word Embeddings for Pretrained Language Models", 2021.

    Raises:
        UserError: naming the key, if the model has one of them already.
    """
    model = load_model(folder, stored_dtype(folder))
    num_rows = len(model.get_input_embeddings().weight)
    old = {word: id for word, id in tokenizer.get_vocab().items() if id < num_rows}
    if existing := next((word for word in words if word in old), None):
        raise UserError(key, f"the model has {existing!r} already", "remove it")
    tokenizer.add_tokens([AddedToken(word, special=True, normalized=False) for word in words])
    ids = tokenizer.convert_tokens_to_ids(words)
    if max(ids) >= num_rows:
        # No more rows than tokens, or llama.cpp refuses the model.
        model.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    own_ids = sorted(old.values())
    for rows in _embeddings(model):
        # Rows in between belong to other tokens that had none, and are filled too.
        new_ids = sorted({*ids, *range(num_rows, len(rows))})
        # All columns at once would take four times the memory of an embedding in bf16.
        for columns in torch.split(rows.view(len(rows), -1), _COLUMNS_AT_ONCE, dim=1):
            columns[new_ids] = columns[own_ids].double().mean(0).to(rows.dtype)
    setattr(model.config, NEW_TOKENS, ids)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def set_eos_token(folder: Path, tokenizer: PreTrainedTokenizerFast, word: str, key: str) -> None:
    """Make a token the one that ends texts and answers.

    Raises:
        UserError: naming the key, if the tokenizer doesn't have it.
    """
    if word not in tokenizer.get_vocab():
        raise UserError(key, f"the tokenizer has no token {word!r}", "add it to new_tokens")
    tokenizer.eos_token = word
    save_tokenizer(tokenizer, folder)
    _name_stop(folder, "config.json", tokenizer.eos_token_id)
    if (folder / "generation_config.json").is_file():
        # A chat model may have several.
        stops = stop_token_ids(tokenizer, folder)
        _name_stop(folder, "generation_config.json", stops if len(stops) > 1 else stops[0])


def _name_stop(folder: Path, name: str, stop: int | list[int]) -> None:
    """Set `eos_token_id` in a file of a folder, also in the section for text if it is there."""
    config = json.loads((folder / name).read_text())
    for section in (config, config.get("text_config") or {}):
        if section is config or "eos_token_id" in section:
            section["eos_token_id"] = stop
    (folder / name).write_text(json.dumps(config, indent=2) + "\n")


def _embeddings(model: PreTrainedModel) -> list[Tensor]:
    """The tensors with a row for each token, tied ones once."""
    head = model.get_output_embeddings()
    tensors = [model.get_input_embeddings().weight, head.weight, getattr(head, "bias", None)]
    return list({id(one): one.data for one in tensors if one is not None}.values())
