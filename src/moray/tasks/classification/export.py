"""The export of a model that classifies texts, or of its adapter."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from moray.config.schema.train import Adapter
from moray.model.adapter import merged, save_adapter
from moray.model.chat_template import with_defaults
from moray.model.folder import (
    DTYPES,
    LOCAL,
    base_of_adapter,
    base_reference,
    stored_dtype,
    unrounded_dtype,
    whole_model_and_adapters,
)
from moray.model.load import convert
from moray.stages.export import ExportedModel
from moray.tasks.classification.classifier import is_of_words, load, names_of
from moray.tasks.classification.survey import REGRESSION
from moray.train.checkpoint.load import trained_model

_SHOWN = 20
_ALONE = """ This folder contains
only the adapter with its output layer, which is loaded on top of `{start}`."""


def write(start: Path, record: dict[str, Any], output: Path, cfg: dict[str, Any]) -> ExportedModel:
    """Write model or adapter, and tokenizer."""
    adapter = Adapter(**record["adapter"]) if record["adapter"] else None
    alone = adapter is not None and not cfg["merge_adapter"]
    whole, _ = whole_model_and_adapters(start)
    # What the adapter is on top of.
    base = start if adapter is None or adapter.create_new_adapter else base_of_adapter(start)
    dtype = stored_dtype(whole) if cfg["dtype"] == "auto" else DTYPES[cfg["dtype"]]
    # Weights with an adapter are rounded once.
    loaded = unrounded_dtype(whole, dtype) if adapter else dtype
    of_start = partial(load, dtype=loaded)
    model = trained_model(base, Path(record["checkpoint"]), adapter, of_start)
    config, facts = model.config, dict[str, Any]()
    if adapter is not None:
        kept = output if alone else output / "adapter"
        save_adapter(
            model, adapter, kept, DTYPES.get(cfg["dtype"], torch.float32), (str(base), None)
        )
    if alone:
        facts["parameters"] = model.num_parameters(only_trainable=True)
        facts["base"] = base_reference(output, base)
    else:
        if adapter is not None:
            # A large model fits into memory once.
            del model
            model = merged(of_start(base), output / "adapter")
        convert(model, dtype)
        facts["parameters"] = model.num_parameters()
        model.save_pretrained(output)
    below = cfg["start"] if base == start else base
    tokenizer = AutoTokenizer.from_pretrained(start, **LOCAL)
    if cfg.get("chat_template"):
        tokenizer.chat_template = tokenizer.get_chat_template(cfg["chat_template"])
    if (variables := cfg.get("template_variables")) and tokenizer.chat_template:
        tokenizer.chat_template = with_defaults(tokenizer.chat_template, variables)
    tokenizer.save_pretrained(output)
    names = names_of(config)
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    is_number, is_reward = config.problem_type == REGRESSION, "reward" in record
    says = f"Its classes: {shown}."
    if is_number:
        says = "It gives a text a reward." if is_reward else "It predicts a number."
    of_words = is_of_words(config)
    unit = "per pair" if is_reward else "per word" if of_words else "per text"
    return ExportedModel(
        unit=unit if is_number else f"nats {unit}",
        pipeline="token-classification" if of_words else "text-classification",
        facts=facts,
        library="peft" if alone else "transformers",
        more=f" {says}{_ALONE.format(start=below) if alone else ''}",
    )
