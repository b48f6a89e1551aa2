"""Low-rank adapters on a frozen base model, with PEFT.

PEFT is imported when it is needed: that takes over a second, and most runs have no adapter.
"""

import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from moray.config import extras
from moray.config.schema.train import Adapter
from moray.errors import UserError, first_line
from moray.model.forward import freeze_unused
from moray.model.targets import lora_config, unknown_targets

# What an adapter began with that was taken away from the base's weights.
_START = "start_of_adapter"
# What an adapter's output is scaled by, in PEFT's config, by our keys.
_OF_SCALE = {
    "rank": ("r", "rank_pattern"),
    "alpha": ("lora_alpha", "alpha_pattern"),
    "use_rslora": ("use_rslora",),
    "use_dora": ("use_dora",),
}
# What PEFT writes an adapter into, and what it puts before its names.
_WEIGHTS, _PREFIX = "adapter_model.safetensors", "base_model.model."


def add_adapter(model: PreTrainedModel, settings: Adapter, seed: int) -> None:
    """Freeze a model and add adapters that start as zero, in fp32 regardless of the model's type.

    Raises:
        UserError: see `lora_config`.
    """
    config = lora_config(model, settings)
    if settings.changes_base and model.device.type == "meta":
        # These workers have no weights yet, and get all of them from the first one.
        config.init_lora_weights = True
    with torch.random.fork_rng(devices=[]):
        # A start from the base's weights is a function of these alone: the export finds it again.
        torch.manual_seed(0 if settings.changes_base else seed)
        try:
            model.add_adapter(config)
        except ValueError as error:
            raise unknown_targets(settings, error) from error
    if settings.dropout and not config.lora_dropout:
        _drop_out(model, settings.dropout)
    # Also those that it puts where text doesn't pass.
    freeze_unused(model)
    # PEFT creates adapters in the layer's compute type, in which small updates would be lost.
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if settings.changes_base:
        from peft.utils import get_peft_model_state_dict

        start = get_peft_model_state_dict(model, adapter_name="default")
        vars(model)[_START] = {name: value.clone() for name, value in start.items()}


def add_to_base_of_run(
    model: PreTrainedModel,
    settings: Adapter,
    seed: int,
    recompute: bool = False,
    start: Path | None = None,
) -> None:
    """Add an adapter to the base as a run holds it, which may be quantized; see `add_adapter`.

    Args:
        recompute: whether quantized experts compute again in the backward pass.
        start: folder of the adapter whose weights it begins with.
    """
    bits = settings.quantize_base
    base = extras.part(extras.QUANTIZED[bits], "base") if bits else None
    with base.adding_adapters(model, recompute) if base else nullcontext():
        add_adapter(model, settings, seed)
    if start:
        load_adapter(model, start)


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Give a model's adapter the weights of the one in a folder, as PEFT writes it.

    Raises:
        UserError: if it has other weights than the model's, or another scale.
    """
    from peft import PeftConfig
    from peft.utils import set_peft_model_state_dict

    stored, own = PeftConfig.from_pretrained(str(folder)), model.peft_config["default"]
    for key, names in _OF_SCALE.items():
        others, ours = ([getattr(config, name) for name in names] for config in (stored, own))
        if others != ours:
            raise UserError(
                f"adapter.{key}",
                f"the adapter in {folder} has another one ({_shown(names, others)}, and here "
                f"{_shown(names, ours)})",
                "give adapter the keys that it was trained with",
            )
    state = _stored_state(folder)
    if differing := _differing(model, state):
        name, there, here = differing
        raise UserError(
            "adapter.create_new_adapter",
            f"the adapter in {folder} has {there or 'no'} weights {name}, and that of this run "
            f"{here or 'none'}",
            "give adapter the keys that it was trained with",
        )
    set_peft_model_state_dict(model, state, adapter_name="default")


def check_adapter(model: PreTrainedModel, folder: Path, key: str) -> None:
    """Check that PEFT can load the adapter in a folder onto a model, all of it.

    PEFT would leave out what doesn't fit, and initialize what is missing.

    Args:
        key: of the config, which names the folder.

    Raises:
        UserError: if it can't.
    """
    from peft import PeftConfig, PeftModel

    try:
        config = PeftConfig.from_pretrained(str(folder))
        if (kind := str(config.peft_type)) not in ("LORA", "PeftType.LORA"):
            raise UserError(key, f"has an adapter of type {kind}, expected LORA", "choose another")
        whole: Any = PeftModel.from_pretrained(model, str(folder))
    except (ValueError, TypeError, RuntimeError, KeyError, OSError, SafetensorError) as error:
        raise UserError(
            key,
            f"PEFT can't load {folder} onto the model ({first_line(error)})",
            "check that it is an adapter of this model, and that both are complete",
        ) from error
    differing = _differing(whole, _stored_state(folder))
    whole.unload()
    if differing:
        name, there, here = differing
        raise UserError(
            key,
            f"{folder} has {there or 'no'} weights {name}, and an adapter of this model "
            f"{here or 'none'}",
            "check that it is an adapter of this model",
        )


def _stored_state(folder: Path) -> dict[str, Tensor]:
    """The weights of an adapter as PEFT writes it, in fp32, by their names in the model."""
    stored = load_file(folder / _WEIGHTS)
    return {name.removeprefix(_PREFIX): value.float() for name, value in stored.items()}


def _differing(model: Any, state: dict[str, Tensor]) -> tuple[str, Any, Any] | None:
    """The first weight of a model's adapter that isn't in a state, or has another shape there.

    Returns:
        Its name, its shape in the state and its shape in the model; None if there is none.
    """
    from peft.utils import get_peft_model_state_dict

    own = get_peft_model_state_dict(model, adapter_name="default")
    ours = {name.removeprefix(_PREFIX): tuple(value.shape) for name, value in own.items()}
    others = {name: tuple(value.shape) for name, value in state.items()}
    names = sorted(name for name, _ in {*ours.items()} ^ {*others.items()})
    return (names[0], others.get(names[0]), ours.get(names[0])) if names else None


def _shown(names: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))


def _drop_out(model: PreTrainedModel, share: float) -> None:
    """Give the layers of an adapter dropout, but for parameters."""
    from peft.tuners.lora import LoraLayer, ParamWrapper

    for layer in model.modules():
        if isinstance(layer, LoraLayer) and not isinstance(layer, ParamWrapper):
            layer.lora_dropout["default"] = torch.nn.Dropout(share)


def leave_casts_to_autocast(model: PreTrainedModel, settings: Adapter) -> None:
    """Have adapters take their inputs as they are; call if they always run under autocast.

    PEFT casts an input in bf16 to the adapter's fp32, and autocast casts it back. The values stay
    the same, but compiled code writes them a second time, and keeps both for the backward pass.
    """
    if settings.dropout or settings.use_dora:
        # These compute with the input themselves, in its type.
        return
    for module in model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False


def save_adapter(
    model: PreTrainedModel,
    settings: Adapter,
    folder: Path,
    dtype: torch.dtype,
    base: tuple[str | None, str | None] = (None, None),
) -> None:
    """Write a model's adapters in PEFT's format, for the base as it was before they were added.

    Args:
        settings: those that they were made with.
        base: where PEFT finds the model without them: its path, or its name on the Hub and its
            commit.
    """
    from peft.utils import get_peft_model_state_dict

    folder.mkdir(exist_ok=True)
    config = copy(model.peft_config["default"])
    is_expression = isinstance(targets := settings.target_modules, str) and targets != "all-linear"
    if not config.target_parameters and not is_expression:
        # As it was given, instead of the names that it stands for.
        config.target_modules = settings.target_modules
    for key in ("target_modules", "target_parameters", "exclude_modules"):
        if isinstance(names := getattr(config, key), Collection) and not isinstance(names, str):
            # The order of a set is another in each process.
            setattr(config, key, sorted(names))
    config.base_model_name_or_path, config.revision = base
    state = get_peft_model_state_dict(model, adapter_name="default")
    if settings.changes_base:
        state = _less_their_start(config, state, vars(model)[_START])
    config.save_pretrained(str(folder))
    weights = {f"{_PREFIX}{name}": value.to(dtype).contiguous() for name, value in state.items()}
    save_file(weights, folder / _WEIGHTS, {"format": "pt"})


def _less_their_start(
    config: Any, state: dict[str, Tensor], start: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Adapters of twice the rank, which add what has changed since they began: BA - B0 A0.

    Args:
        config: PEFT's, which is changed.
        state: trained matrices, by name.
        start: those that they began with.
    """
    alpha = math.sqrt(2) if config.use_rslora else 2
    config.r, config.lora_alpha = 2 * config.r, alpha * config.lora_alpha
    config.rank_pattern = {name: 2 * rank for name, rank in config.rank_pattern.items()}
    config.alpha_pattern = {name: alpha * one for name, one in config.alpha_pattern.items()}
    config.init_lora_weights = True
    both = {}
    for name, value in state.items():
        if ".lora_A." in name:
            both[name] = torch.cat([value, start[name]])
        elif ".lora_B." in name:
            both[name] = torch.cat([value, -start[name]], dim=1)
        else:
            both[name] = value
    return both


def merged(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge an adapter into its base, each layer in fp32; returns a plain model.

    The weights keep their types, and those that can be trained still can be.
    """
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    # PEFT freezes it, for good.
    trained = {name: weight.requires_grad for name, weight in base.named_parameters()}
    whole: Any = PeftModel.from_pretrained(base, str(folder))
    for layer in whole.modules():
        if isinstance(layer, BaseTunerLayer):
            weights = list(layer.get_base_layer().parameters(recurse=False))
            stored = [weight.data for weight in weights]
            for weight in weights:
                weight.data = weight.data.float()
            layer.merge()
            # In place: what is mapped from a file isn't held a second time.
            for weight, before in zip(weights, stored, strict=True):
                weight.data = before.copy_(weight.data)
    model: PreTrainedModel = whole.unload()
    for name, weight in model.named_parameters():
        weight.requires_grad_(trained[name])
    return model
