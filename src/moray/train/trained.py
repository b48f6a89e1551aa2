"""What of a model is trained, and what is frozen, by kinds of layers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.size import num_weights
from moray.train.optimizer import block_matrices

# What PEFT calls the parts of a layer with an adapter.
_PARTS = {"base_layer", "original_module", "token_adapter", "modules_to_save", "default"}
# What tells the layers around them.
_AROUND = ("base_layer", "modules_to_save")


@dataclass(frozen=True)
class Trained:
    """What is trained; tied weights count once, and those of 4 bits as what they stand for.

    Attributes:
        parameters: number of trained ones.
        total: number of all, with those of adapters.
        in_matrices: number of trained ones in the matrices of blocks.
        layers: of an adapter, the number of layers and of their trained parameters, by kind.
        frozen: without an adapter, the number of parameters of each part that isn't trained.
        without_dropout: kinds of layers that can't have the adapter's dropout.
    """

    parameters: int
    total: int
    in_matrices: int
    layers: dict[str, tuple[int, int]]
    frozen: dict[str, int]
    without_dropout: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """For `train.json`."""
        layers = {
            kind: {"layers": count, "parameters": parameters}
            for kind, (count, parameters) in self.layers.items()
        }
        facts: dict[str, Any] = {"parameters": self.parameters, "of": self.total}
        facts |= {"layers": layers, "frozen": self.frozen}
        undropped = {"without_dropout": [*self.without_dropout]} if self.without_dropout else {}
        return facts | undropped

    def __str__(self) -> str:
        if self.parameters == self.total:
            return f"trained: all {number(self.total)} parameters"
        kinds = "".join(f"{count} {kind}, " for kind, (count, _) in self.layers.items())
        frozen = ", ".join(f"{part} {number(count)}" for part, count in self.frozen.items())
        whole = f"trained: {kinds}{number(self.parameters)} of {number(self.total)} parameters"
        if frozen:
            whole += f"; frozen: {frozen}"
        if self.without_dropout:
            whole += f"; no dropout on {', '.join(self.without_dropout)}, which are no layers"
        return whole


def trained_of(model: PreTrainedModel, adapter: Adapter | None) -> Trained:
    """What is trained of a model, before a strategy shards it.

    Raises:
        UserError: if nothing is.
    """
    parameters = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    if not parameters:
        raise _nothing(model, adapter)
    return Trained(
        parameters=parameters,
        total=sum(map(num_weights, model.parameters())),
        in_matrices=sum(weight.numel() for weight in block_matrices(model)),
        layers=_layers(model) if adapter else {},
        frozen={} if adapter else _frozen(model),
        without_dropout=_without_dropout(model) if adapter and adapter.dropout else (),
    )


def _nothing(model: PreTrainedModel, adapter: Adapter | None) -> UserError:
    if adapter:
        return UserError(
            "adapter.target_modules",
            f"got {adapter.target_modules}, of which nothing would be trained, because text "
            "doesn't pass these layers",
            "name layers of the decoder, or choose all-linear",
        )
    return UserError(
        "model",
        f"all {number(model.num_parameters())} parameters are frozen, so nothing would be trained",
        "choose another model",
    )


def _layers(model: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """The layers with trained parameters: their number and that of the parameters, by kind."""
    kinds: dict[str, dict[str, int]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            path, kind = _owner(model, name)
            paths = kinds.setdefault(kind, {})
            paths[path] = paths.get(path, 0) + weight.numel()
    return {kind: (len(paths), sum(paths.values())) for kind, paths in kinds.items()}


def _without_dropout(model: PreTrainedModel) -> tuple[str, ...]:
    """The kinds of parameters that PEFT adapts without a layer of theirs being called."""
    kinds = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            path, kind = _owner(model, name)
            kinds[kind] = hasattr(model.get_submodule(path), "parameter_name")
    return tuple(kind for kind, is_parameter in kinds.items() if is_parameter)


def _owner(model: PreTrainedModel, name: str) -> tuple[str, str]:
    """The layer that a trained parameter adapts: its path, and its kind.

    An adapter of a tensor, such as that of all experts, has another one inside of it. Some layers
    are trained whole beside adapters.
    """
    path = name.rpartition(".")[0]
    while path and not any(hasattr(model.get_submodule(path), part) for part in _AROUND):
        path = path.rpartition(".")[0]
    parts = [part for part in (path or name).split(".") if part not in _PARTS]
    tensor = getattr(model.get_submodule(path), "parameter_name", "weight")
    return path or name, parts[-1] if tensor == "weight" else f"{parts[-1]}.{tensor}"


def _frozen(model: PreTrainedModel) -> dict[str, int]:
    frozen: dict[str, int] = {}
    for name, weights in _frozen_parts(model, ""):
        frozen[name] = frozen.get(name, 0) + sum(map(num_weights, weights))
    return frozen


def _frozen_parts(module: nn.Module, path: str) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """The outermost modules that are frozen as a whole, and single frozen weights of the others."""
    weights = [*module.parameters()]
    if weights and not any(weight.requires_grad for weight in weights):
        yield path.removeprefix("model."), weights
        return
    for name, weight in module.named_parameters(recurse=False):
        if not weight.requires_grad:
            yield f"{path}.{name}".removeprefix(".").removeprefix("model."), [weight]
    for name, child in module.named_children():
        yield from _frozen_parts(child, f"{path}.{name}".removeprefix("."))


def number(parameters: int) -> str:
    """A number of parameters for people."""
    return f"{parameters / 1e6:,.1f} M" if parameters > 1e5 else f"{parameters:,}"
