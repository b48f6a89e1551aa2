"""Which layers of a model get an adapter.

In transformers 5, the experts of a mixture are no layers: each layer has one tensor for all of its
experts, with the gate and the upward projection of each side by side. PEFT adapts such tensors as
parameters, without dropout and DoRA. Other layers beside them have the dropout.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from moray.config.schema.train import Adapter
from moray.errors import UserError, first_line
from moray.model.shapes import NEW_TOKENS

if TYPE_CHECKING:
    from peft import LoraConfig

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
# The layers of a single expert, by the tensor that has them of all.
_OF_EXPERTS = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}
_LAYERS_OF_EXPERTS = {
    name for layers in _OF_EXPERTS.values() for together in layers for name in together
}
_CLASSES_OF_ROUTERS = re.compile(r"Router|Gating|MoE\w*Gate$")
# What PEFT calls the router's weight, which was a linear layer before transformers 5.
_ROUTER = "gate.weight"


def lora_config(model: PreTrainedModel, settings: Adapter) -> "LoraConfig":
    """PEFT's settings of an adapter, with the layers and parameters of a model that get one.

    Raises:
        UserError: if a target isn't a layer of the model, is an embedding whose weights the input
            and the output share, or doesn't work with the other settings.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    ids = getattr(model.config, NEW_TOKENS, None)
    ids = sorted({*(ids or ()), *(settings.trainable_token_indices or ())})
    heads = _heads(model)
    # Those that are trained whole have the new ones too.
    whole = {path for name in settings.modules_to_save or () for path in _layers(model, name)}
    embeddings = [path.rpartition(".")[2] for path in _embeddings(model) if path not in whole]
    targets, parameters = settings.target_modules, dict[str, int]()
    if not isinstance(targets, str):
        parameters = _experts(model, targets)
        targets = [
            name for name in targets if name not in _LAYERS_OF_EXPERTS or _layers(model, name)
        ]
        _check_names(model, targets)
    elif targets != "all-linear" and any(parameter.dim() == 3 for parameter in model.parameters()):
        targets = _matches(model, targets)
    left_out = _in_heads(model, heads)
    if targets == "all-linear":
        left_out = [*_not_adapted(model), *left_out]
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=targets,
        target_parameters=[*parameters, *(settings.target_parameters or ())] or None,
        rank_pattern={_pattern(name): settings.rank * n for name, n in parameters.items() if n > 1}
        | (settings.rank_pattern or {}),
        alpha_pattern={
            _pattern(name): settings.alpha * n for name, n in parameters.items() if n > 1
        }
        | (settings.alpha_pattern or {}),
        layers_to_transform=settings.layers_to_transform,
        exclude_modules=left_out or None,
        modules_to_save=[*dict.fromkeys([*heads, *(settings.modules_to_save or ())])] or None,
        init_lora_weights=settings.init_lora_weights or True,
        use_rslora=settings.use_rslora,
        lora_dropout=settings.dropout,
        use_dora=settings.use_dora,
        trainable_token_indices=dict.fromkeys(embeddings, ids) if ids and embeddings else None,
        task_type=_task_type(model) if heads else "CAUSAL_LM",
    )
    try:
        # What PEFT does with it later, too: then, nothing is left to convert.
        convert_peft_config_for_transformers(config, model, None)
        if settings.use_rslora:
            # Ranks of layers side by side add up; the scale stays that of one.
            config.alpha_pattern = {
                name: settings.alpha * math.sqrt(config.rank_pattern[name] / settings.rank)
                for name in config.alpha_pattern
            } | (settings.alpha_pattern or {})
    except ValueError as error:
        raise unknown_targets(settings, error) from error
    if config.target_parameters:
        named = {*config.target_parameters}
        if targets == "all-linear":
            named.discard(_ROUTER)
        config.target_parameters = sorted(named | {*_left_out(model, config, targets)})
        if not isinstance(config.target_modules, str):
            config.target_modules = sorted(config.target_modules)
        # PEFT refuses it for parameters, also when it loads an adapter.
        config.lora_dropout = 0.0
        _check_experts(model, settings, config)
    _check_others(model, settings)
    return config


def unknown_targets(settings: Adapter, error: Exception) -> UserError:
    """The error for targets that PEFT refuses."""
    return UserError(
        "adapter.target_modules",
        f"got {settings.target_modules} ({first_line(error)})",
        "name linear layers of the model, or choose all-linear",
    )


def _matches(model: PreTrainedModel, expression: str) -> list[str]:
    """The paths of the layers of a mixture of experts that an expression stands for.

    PEFT would take the last parts of their names, in all blocks.

    Raises:
        UserError: if one has a name that PEFT takes for that of experts.
    """
    linear = (path for path, module in model.named_modules() if isinstance(module, nn.Linear))
    found = [path for path in linear if re.fullmatch(expression, path)]
    for path in found:
        if path.rpartition(".")[2] in {*_LAYERS_OF_EXPERTS, "gate"}:
            raise UserError(
                "adapter.target_modules",
                f"got {expression}, which has {path}: PEFT takes its name for that of the experts",
                "list the names of layers, and experts in target_parameters",
            )
    # None: PEFT says so.
    return found or [expression]


def _experts(model: PreTrainedModel, names: Iterable[str]) -> dict[str, int]:
    """The tensors of experts that names stand for, with the number of layers side by side.

    They stand for layers of the same name beside the experts too.

    Raises:
        UserError: if a name stands for one of two layers in a tensor.
    """
    tensors = {
        name.rpartition(".")[2] for name, weight in model.named_parameters() if weight.dim() == 3
    }
    named, found = {*names}, dict[str, int]()
    for tensor in sorted(tensors & _OF_EXPERTS.keys()):
        for together in _OF_EXPERTS[tensor]:
            missing = [name for name in together if name not in named]
            if missing and len(missing) < len(together):
                raise UserError(
                    "adapter.target_modules",
                    f"got {', '.join(sorted({*together} - {*missing}))} without "
                    f"{', '.join(missing)}, which is in the same tensors of the experts",
                    "name both",
                )
            if not missing:
                found[tensor] = len(together)
    return found


def _pattern(tensor: str) -> str:
    """The key of PEFT's patterns for a tensor of experts."""
    return rf".*\.{tensor}"


def _layers(model: PreTrainedModel, name: str) -> list[str]:
    """The paths of the layers that a name, or an end of a name, stands for."""
    return [path for path, _ in model.named_modules() if path == name or path.endswith(f".{name}")]


def _left_out(
    model: PreTrainedModel, config: "LoraConfig", targets: str | list[str]
) -> Iterator[str]:
    """The weights of layers that are named as those of an expert, such as a shared expert's.

    PEFT takes such a name for the tensors of all experts alone.
    """
    if isinstance(targets, str) and targets != "all-linear":
        # An expression says itself which.
        return
    names = _LAYERS_OF_EXPERTS if isinstance(targets, str) else _LAYERS_OF_EXPERTS & {*targets}
    for path, module in model.named_modules():
        parent, _, name = path.rpartition(".")
        if isinstance(module, nn.Linear) and name in names - {*config.target_modules}:
            yield f"{parent.rpartition('.')[2]}.{name}.weight"


def _check_experts(model: PreTrainedModel, settings: Adapter, config: "LoraConfig") -> None:
    keys = {
        "use_dora": settings.use_dora and "set it to false",
        "init_lora_weights": settings.init_lora_weights not in (None, "gaussian")
        and "set it to null",
    }
    others = ", ".join(sorted(config.target_modules))
    for key, remedy in keys.items():
        if remedy:
            raise UserError(
                f"adapter.{key}",
                f"can't be used with the experts of a {model.config.model_type} model, which share "
                "a tensor",
                remedy + (f", or target_modules to [{others}]" if others else ""),
            )


def _check_others(model: PreTrainedModel, settings: Adapter) -> None:
    """Check what PEFT takes without a word: names of nothing, and embeddings that share weights."""
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    targets = settings.target_modules
    is_expression = isinstance(targets, str) and targets != "all-linear"
    if is_expression and not any(re.fullmatch(str(targets), path) for path in modules):
        raise _nothing("target_modules", str(targets), "an expression for the path of a layer")
    both = model.get_input_embeddings(), model.get_output_embeddings()
    for name in settings.modules_to_save or ():
        found = [modules[path] for path in _layers(model, name)]
        if not found:
            raise _nothing("modules_to_save", name, "the name of a module")
        if both[0].weight is both[1].weight and any(module in both for module in found):
            raise UserError(
                "adapter.modules_to_save",
                f"got {name}, whose weights are shared by the input and output embeddings",
                "remove it",
            )
        if not all(w.is_floating_point() for module in found for w in module.parameters()):
            raise UserError(
                "adapter.modules_to_save",
                f"got {name}, which quantize_base quantizes",
                "remove one of them",
            )
    for name in settings.target_parameters or ():
        if not any(path == name or path.endswith(f".{name}") for path in parameters):
            raise _nothing("target_parameters", name, "the end of a parameter's name")
    for key, patterns in (
        ("rank_pattern", settings.rank_pattern),
        ("alpha_pattern", settings.alpha_pattern),
    ):
        for pattern in patterns or ():
            # As PEFT looks for it.
            whole = re.compile(rf"(.*\.)?({pattern})$")
            if not any(map(whole.match, [*modules, *parameters])):
                raise _nothing(key, pattern, "the name of a layer")
    count = model.config.get_text_config().num_hidden_layers
    for number in settings.layers_to_transform or ():
        if number >= count:
            raise _nothing("layers_to_transform", str(number), f"at most {count - 1}")


def _nothing(key: str, name: str, expected: str) -> UserError:
    return UserError(f"adapter.{key}", f"got {name}, expected {expected}", "correct it")


def _check_names(model: PreTrainedModel, names: Iterable[str]) -> None:
    modules = dict(model.named_modules())
    both = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = both[1] is not None and both[0].weight is both[1].weight
    tied = both if is_tied else ()
    for name in names:
        found = _layers(model, name)
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


def _not_adapted(model: PreTrainedModel) -> list[str]:
    """The names of linear layers that `all-linear` leaves out, besides the output embedding.

    Routers are linear layers, or have one; those of most mixtures of experts have a plain
    parameter.
    """
    routers = [
        f"{path}.{name}".removesuffix(".")
        for path, router in model.named_modules()
        if _CLASSES_OF_ROUTERS.search(type(router).__name__)
        for name, module in router.named_modules()
        if isinstance(module, nn.Linear)
    ]
    return [*routers, *_NOT_CALLED.get(model.config.get_text_config().model_type, ())]


def _heads(model: PreTrainedModel) -> list[str]:
    """The names of the layers behind the body of a model that isn't a language model.

    They are new mostly, so an adapter trains and keeps them whole. So is the pooler of a BERT that
    was a masked language model, although it belongs to the body.
    """
    if model.get_output_embeddings() is not None:
        return []
    body = model.base_model_prefix
    pooler = getattr(model.base_model, "pooler", None) or nn.Identity()
    has_weights = any(isinstance(module, nn.Linear) for module in pooler.modules())
    return [
        *([f"{body}.pooler"] if has_weights else []),
        *(
            name
            for name, child in model.named_children()
            if name != body and any(True for _ in child.parameters())
        ),
    ]


def _task_type(model: PreTrainedModel) -> str:
    """PEFT's name for what a model with other layers than a language model's does."""
    of_words = type(model).__name__.endswith("ForTokenClassification")
    return "TOKEN_CLS" if of_words else "SEQ_CLS"


def _in_heads(model: PreTrainedModel, heads: list[str]) -> list[str]:
    """The linear layers that are in such a layer, or are it."""
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and any(f"{path}.".startswith(f"{head}.") for head in heads)
    ]


def _embeddings(model: PreTrainedModel) -> list[str]:
    """The paths of the input and output embeddings; of tied ones, PEFT trains both by the first."""
    both = [model.get_input_embeddings(), model.get_output_embeddings()]
    if model.config.get_text_config().tie_word_embeddings:
        both.pop()
    names = {id(module): name for name, module in model.named_modules()}
    return [names[id(module)] for module in both]
