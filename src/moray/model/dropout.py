"""Models without the dropout that their config has."""

from torch import nn
from transformers import PreTrainedModel


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """Turn off a model's dropout.

    Modules keep their probabilities as attributes, which their config only initialises, so what is
    exported keeps its own.
    """
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or isinstance(module, nn.Dropout)):
                setattr(module, name, 0.0)
    return model
