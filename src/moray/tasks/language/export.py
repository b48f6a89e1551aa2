"""The export of a language model."""

import json
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from moray.config.plan import folder_of
from moray.config.schema.losses import Distillation
from moray.config.schema.train import Adapter
from moray.console import say
from moray.model.adapter import merged, save_adapter
from moray.model.chat_template import with_defaults
from moray.model.folder import (
    DTYPES,
    base_of_adapter,
    base_reference,
    stored_dtype,
    unrounded_dtype,
    whole_model_and_adapters,
)
from moray.model.load import convert, load_config, load_model
from moray.model.obtain import copy_unchanged
from moray.provenance.manifest import read_manifest
from moray.stages.export import ExportedModel
from moray.tasks.language.proofs.folder import compare_stops, compare_tokenizer
from moray.tasks.language.rounding import share_unchanged
from moray.tasks.language.tokenizer import (
    adds_bos,
    begin_with_bos,
    load_tokenizer,
    opening,
    stop_token_ids,
)
from moray.tasks.language.tokenizer_files import save_tokenizer
from moray.train.checkpoint.load import trained_model

_ALONE = """ This folder contains
only the adapter, which is loaded on top of `{start}`."""

_TAUGHT = """ It learned from the
predictions of `{teacher}` too."""

_VARIABLES = """ Its chat template has
{variables} by default, as in training; a caller can set another value."""

# What losses are of, by the section that only their task reads.
_UNITS = {"preference": "per pair", "kto": "per answer"}
# If more of the weights are unchanged by a training, most of it is lost.
_MOST_UNCHANGED = 0.5
# Adapters are trained in fp32, and small.
_ADAPTER_DTYPE = {"auto": torch.float32, **DTYPES}


def write(start: Path, record: dict[str, Any], output: Path, cfg: dict[str, Any]) -> ExportedModel:
    """Write model or adapter, generation config and tokenizer."""
    adapter = Adapter(**record["adapter"]) if record["adapter"] else None
    whole, _ = whole_model_and_adapters(start)
    # What the adapter is on top of.
    base = start if adapter is None or adapter.create_new_adapter else base_of_adapter(start)
    dtype = stored_dtype(whole) if cfg["dtype"] == "auto" else DTYPES[cfg["dtype"]]
    loaded = dtype if adapter is None else _merge_dtype(base, dtype)
    load = partial(load_model, dtype=loaded)
    as_trained = load
    if adapter is not None and adapter.changes_base:
        # What was taken away from the base is that of its weights in this type.
        as_trained = partial(load_model, dtype=DTYPES[adapter.base_dtype])
    model = trained_model(base, Path(record["checkpoint"]), adapter, as_trained)
    facts: dict[str, Any] = {}
    alone = adapter is not None and not cfg["merge_adapter"]
    tokenizer = load_tokenizer(start)
    stops = stop_token_ids(tokenizer, start)
    if adapter is not None and alone:
        save_adapter(model, adapter, output, _ADAPTER_DTYPE[cfg["dtype"]], _base(base))
        _stop_at(model, stops).generation_config.save_pretrained(output)
        facts["parameters"] = model.num_parameters(only_trainable=True)
        facts["base"] = base_reference(output, base)
    else:
        if adapter is not None:
            save_adapter(model, adapter, output / "adapter", torch.float32, _base(base))
            # A large model fits into memory once.
            del model
            model = merged(load(base), output / "adapter")
        facts["parameters"] = model.num_parameters()
        convert(model, dtype)
        for part in model.config.sub_configs:
            if section := getattr(model.config, part, None):
                # The run held its weights in fp32.
                section.dtype = torch.float32
        _stop_at(model, stops).save_pretrained(output)
        _write_old_rope_names(output / "config.json")
    if not alone:
        copy_unchanged(whole, output)
        # A step in bf16 is rounded at once, so nothing is lost on export.
        if dtype != torch.float32 and record["train"].get("weights", "fp32") == "fp32":
            _warn_of_rounding(output, whole, dtype, cfg["run"])
    below = cfg["start"] if base == start else base
    more = _ALONE.format(start=below) if alone else ""
    if taught := record.get("distillation"):
        more += _TAUGHT.format(teacher=folder_of(Distillation(**taught).teacher))
    bos = cfg.get("bos", "auto")
    # Whether documents began with BOS in training, which the tokenizer's call doesn't always say.
    facts["bos"] = bool(opening(tokenizer, bos))
    if bos != "auto" and bos != adds_bos(tokenizer):
        begin_with_bos(tokenizer, bos)
    if cfg["chat_template"] is not None:
        # If the tokenizer has several, this one is chosen by name.
        tokenizer.chat_template = tokenizer.get_chat_template(cfg["chat_template"])
        # Others would go on with the base's for conversations with tools, or with images.
        rmtree(output / "additional_chat_templates", ignore_errors=True)
        _drop_template_of_processor(output)
    if (variables := cfg.get("template_variables")) and tokenizer.chat_template:
        # Pairs of text have no template.
        tokenizer.chat_template = with_defaults(tokenizer.chat_template, variables)
        _drop_template_of_processor(output)
        more += _VARIABLES.format(
            variables=", ".join(f"`{name}: {json.dumps(variables[name])}`" for name in variables)
        )
    save_tokenizer(tokenizer, output)
    return ExportedModel(
        compare=lambda: [
            *compare_tokenizer(output, tokenizer),
            compare_stops(output, stops),
        ],
        unit=next((unit for key, unit in _UNITS.items() if key in record), "nats per token"),
        pipeline="text-generation",
        facts=facts,
        library="peft" if alone else "transformers",
        more=more,
    )


def _warn_of_rounding(output: Path, whole: Path, dtype: torch.dtype, run: str) -> None:
    unchanged = share_unchanged(output, whole, dtype)
    if unchanged is not None and unchanged > _MOST_UNCHANGED:
        kind = str(dtype).removeprefix("torch.")
        say(
            f"warning: model of {run}: rounded to {kind}, {unchanged:.0%} of the trained weights "
            "are those of the start again, so a part of the training is lost; set export.dtype: "
            "fp32, or export.merge_adapter: false for an adapter"
        )


def _base(start: Path) -> tuple[str | None, str | None]:
    """The place of a folder's model for PEFT: its name on the Hub and commit, or its path.

    The path is as in the workflow, relative to its working directory. PEFT would drop one of two
    adapters on top of each other, so the first isn't named.
    """
    manifest = read_manifest(start)
    if "base" in manifest:
        return None, None
    origin: dict[str, Any] = manifest.get("model", {})
    is_changed = origin.get("random_weights") or origin.get("new_tokens")
    if origin.get("source") == "hub" and not is_changed:
        return origin["repo_id"], origin["revision"]
    return str(start), None


def _merge_dtype(start: Path, dtype: torch.dtype) -> torch.dtype:
    """The type to load a model in before an adapter is merged: `dtype`, or fp32 if it matters."""
    whole, adapters = whole_model_and_adapters(start)
    # Weights with several adapters are rounded once. What text doesn't pass has adapters that no
    # checkpoint holds; their first values are rounded to the type of the weights.
    if adapters or load_config(start).sub_configs:
        return torch.float32
    return unrounded_dtype(whole, dtype)


def _stop_at(model: PreTrainedModel, stops: list[int]) -> PreTrainedModel:
    """Have the model's generation config name the stop tokens that are trained."""
    model.generation_config.eos_token_id = stops[0] if len(stops) == 1 else stops
    return model


def _drop_template_of_processor(folder: Path) -> None:
    """Remove the chat template that a processor would take instead of its tokenizer's."""
    (folder / "chat_template.json").unlink(missing_ok=True)
    config = folder / "processor_config.json"
    if config.is_file() and "chat_template" in (settings := json.loads(config.read_text())):
        del settings["chat_template"]
        config.write_text(json.dumps(settings, indent=2) + "\n")


def _write_old_rope_names(path: Path) -> None:
    """Write the settings of rotary positions under the names that they had before transformers 5.

    transformers 4, and servers that use it, ignore `rope_parameters`, and take those that the
    architecture has by default.
    """
    config = json.loads(path.read_text())
    is_changed = False
    for section in (config, config.get("text_config") or {}):
        settings = section.get("rope_parameters") or {}
        # Some models have settings for each type of layer, which had other names.
        if "rope_theta" not in settings or settings == _usual_rope(section["model_type"]):
            continue
        scaling = {key: value for key, value in settings.items() if key != "rope_theta"}
        section["rope_theta"] = settings["rope_theta"]
        if "partial_rotary_factor" in scaling:
            section["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
        if scaling["rope_type"] != "default":
            section["rope_scaling"] = scaling
        is_changed = True
    if is_changed:
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _usual_rope(architecture: str) -> Any:
    return AutoConfig.for_model(architecture).to_dict().get("rope_parameters")
