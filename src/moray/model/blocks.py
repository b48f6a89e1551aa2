"""A model's transformer blocks, which are compiled, sharded and recomputed one by one."""

from torch import nn
from transformers import PreTrainedModel


def blocks_of(model: PreTrainedModel) -> list[nn.Module]:
    """The outermost blocks, in order; empty if the architecture doesn't name its block classes."""
    names = set(model._no_split_modules or [])
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if type(module).__name__ in names and module not in inside:
            blocks.append(module)
            inside.update(module.modules())
    return blocks
