"""A model's transformer blocks: what is compiled, sharded and recomputed one by one."""

from torch import nn
from transformers import PreTrainedModel

from moray.errors import UserError


def blocks_of(model: PreTrainedModel) -> list[nn.Module]:
    """The blocks in their order.

    Raises:
        UserError: if the architecture names none.
    """
    names = set(model._no_split_modules or [])
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        raise UserError(
            model.config.model_type,
            "got an architecture that doesn't say which of its modules are blocks",
            "choose strategy: ddp with compile: false",
        )
    return blocks
