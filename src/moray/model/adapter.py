"""Low-rank adapters on a frozen base model, with PEFT.

PEFT is imported when it is needed: that takes over a second, and most runs have no adapter.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from moray.config.schema.train import Adapter
from moray.errors import UserError, first_line
from moray.model.forward import freeze_unused

if TYPE_CHECKING:
    from peft import LoraConfig

# The key of `config.json` with the tokens whose embeddings an adapter trains too.
NEW_TOKENS = "new_token_ids"
# Linear layers whose weights an architecture's code or kernels read without calling the layer: an
# adapter would have no effect. PEFT refuses `out_proj` for the same reason.
_NOT_CALLED = {
    "falcon_h1": ["out_proj"],
    "falcon_mamba": ["dt_proj", "out_proj"],
    "gemma3n_text": ["correction_coefs"],
    "jamba": ["dt_proj"],
    "mamba": ["dt_proj", "out_proj"],
    "mamba2": ["out_proj"],
    "nemotron_h": ["out_proj"],
}


def add_adapter(model: PreTrainedModel, settings: Adapter, seed: int) -> None:
    """Freeze a model and add adapters that start as zero, in fp32 regardless of the model's type.

    Raises:
        UserError: if a target isn't a layer of the model, or is an embedding whose weights the
            input and the output share.
    """
    if not isinstance(settings.target_modules, str):
        _check_names(model, settings.target_modules)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model.add_adapter(_config(settings, model))
        except ValueError as error:
            raise UserError(
                "adapter.target_modules",
                f"got {settings.target_modules} ({first_line(error)})",
                "name linear layers of the model, or choose all-linear",
            ) from error
    # Also those that it puts where text doesn't pass.
    freeze_unused(model)
    # PEFT creates adapters in the layer's compute type, in which small updates would be lost.
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


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


def _check_names(model: PreTrainedModel, names: Iterable[str]) -> None:
    modules = dict(model.named_modules())
    both = model.get_input_embeddings(), model.get_output_embeddings()
    tied = both if both[0].weight is both[1].weight else ()
    for name in names:
        found = [path for path in modules if path == name or path.endswith(f".{name}")]
        if not found:
            known = {path.rpartition(".")[2] for path in modules}
            close = difflib.get_close_matches(name, known, n=1)
            raise UserError(
                "adapter.target_modules",
                f"got {name}, expected the name of a layer",
                f"did you mean {close[0]}?" if close else "choose all-linear",
            )
        if any(modules[path] is embedding for path in found for embedding in tied):
            # Merging would change both embeddings.
            raise UserError(
                "adapter.target_modules",
                f"got {name}, whose weights are shared by the input and output embeddings",
                "remove it",
            )


def save_adapter(
    model: PreTrainedModel, settings: Adapter, folder: Path, dtype: torch.dtype
) -> None:
    """Write a model's adapters in PEFT's format; `settings` are those that they were made with."""
    from peft.utils import get_peft_model_state_dict

    folder.mkdir(exist_ok=True)
    config = _config(settings, model)
    for key in ("target_modules", "exclude_modules"):
        if isinstance(names := getattr(config, key), set):
            # The order of a set is another in each process.
            setattr(config, key, sorted(names))
    config.save_pretrained(str(folder))
    weights = {
        f"base_model.model.{name}": value.to(dtype).contiguous()
        for name, value in get_peft_model_state_dict(model, adapter_name="default").items()
    }
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})


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


def _config(settings: Adapter, model: PreTrainedModel) -> "LoraConfig":
    from peft import LoraConfig

    ids = getattr(model.config, NEW_TOKENS, None)
    targets = settings.target_modules
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=_not_adapted(model) or None if isinstance(targets, str) else None,
        use_rslora=settings.use_rslora,
        use_dora=settings.use_dora,
        trainable_token_indices=dict.fromkeys(_embeddings(model), ids) if ids else None,
        task_type="CAUSAL_LM",
    )


def _not_adapted(model: PreTrainedModel) -> list[str]:
    """The names of linear layers that `all-linear` leaves out, besides the output embedding.

    Routers that are linear layers return more than one tensor. Those of other mixtures of experts
    aren't linear layers, and aren't adapted either.
    """
    routers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and type(module).__name__.endswith("Router")
    ]
    return [*routers, *_NOT_CALLED.get(model.config.get_text_config().model_type, ())]


def _embeddings(model: PreTrainedModel) -> list[str]:
    """The names of the input and output embeddings; of tied ones, PEFT trains both by the first."""
    both = [model.get_input_embeddings(), model.get_output_embeddings()]
    if model.config.get_text_config().tie_word_embeddings:
        both.pop()
    names = {id(module): name for name, module in model.named_modules()}
    return [names[id(module)].rpartition(".")[2] for module in both]
