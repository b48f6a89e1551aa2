"""Models that classify images, with output layers for the classes of a dataset."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from moray.errors import UserError
from moray.model.classifiers import labels, names_of
from moray.tasks.images.classifier import load_incomplete

OutputLayers = dict[str, nn.Linear]


class AdaptedModel(NamedTuple):
    """A model for the classes of a dataset, and what a user should know of it, a line each."""

    model: PreTrainedModel
    notes: list[str]


def classifier_for(folder: Path, label_names: Sequence[str], seed: int) -> AdaptedModel:
    """Load a model for these classes, in evaluation mode.

    If they are its own in another order, the rows of its output layers are reordered. If its
    own are others, it gets output layers drawn by the seed.

    Raises:
        UserError: if the folder doesn't contain a model that classifies images.
    """
    model, missing, unused = load_incomplete(folder, torch.float32)
    layers, own = _output_layers(model, folder), names_of(model.config)
    of_layers = tuple(f"{name}." for name in layers)
    if others := [key for key in missing if not key.startswith(of_layers)]:
        raise UserError(
            str(folder), f"the weights are missing for {others[0]}", "use a complete model"
        )
    notes = [_left_out(model, unused)] if unused else []
    if missing or sorted(own) != sorted(label_names):
        notes.append(_new(label_names, own, model.config.num_labels, bool(missing)))
        _draw(model, layers, len(label_names), seed)
    elif own != list(label_names):
        _reorder(layers, [own.index(name) for name in label_names])
        notes.append("the classes of its output layer are in the order of the dataset's now")
    # Most configs count the names. PVT's has a number of its own.
    model.config.num_labels = len(label_names)
    for key, value in labels(label_names).items():
        setattr(model.config, key, value)
    # If the base has several classes an image, pipelines would go on to give sigmoids.
    model.config.problem_type = "single_label_classification"
    return AdaptedModel(model.eval(), notes)


def _output_layers(model: PreTrainedModel, folder: Path) -> OutputLayers:
    """The layers with an output for each class, by name; models with a teacher have two.

    Others can have as many outputs by chance. With one more class, only those that are meant have
    one more.
    """
    config = deepcopy(model.config)
    config.num_labels += 1
    with torch.device("meta"):
        other = type(model)(config).state_dict()
    names = {
        name.rpartition(".")[0]
        for name, weight in model.state_dict().items()
        if weight.shape != other[name].shape
    }
    modules = {name: module for name, module in model.named_modules() if name in names}
    linear = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
    if not modules or linear.keys() != modules.keys():
        raise UserError(
            str(folder),
            f"can't find the output layer of this {model.config.model_type} model",
            "choose another model",
        )
    return linear


def _draw(model: PreTrainedModel, layers: OutputLayers, num_labels: int, seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, layer in layers.items():
            new = nn.Linear(layer.in_features, num_labels, layer.bias is not None)
            model.set_submodule(name, new)


@torch.no_grad()
def _reorder(layers: OutputLayers, order: list[int]) -> None:
    for layer in layers.values():
        for parameter in layer.parameters():
            parameter.copy_(parameter[order])


def _new(label_names: Sequence[str], own: Sequence[str], num_own: int, is_missing: bool) -> str:
    what = f"new output layer for {len(label_names):,} classes"
    num_shared = len({*own} & {*label_names})
    if is_missing:
        return f"{what}; the base has none"
    if not num_shared:
        return f"{what}; the base's own {num_own:,} are others"
    return f"{what}; {num_shared:,} of them are among the base's own {num_own:,}, which aren't kept"


def _left_out(model: PreTrainedModel, unused: Sequence[str]) -> str:
    part = f"weights that it doesn't compute with ({len(unused):,}, e.g. {unused[0]})"
    return f"{model.config.model_type} leaves out {part}; they aren't exported either"
