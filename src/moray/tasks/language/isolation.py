"""Check whether a model's architecture isolates documents that share a row."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moray.errors import UserError
from moray.model.forward import blocks_of

# Largest effect of neighbouring documents on an isolated one, relative to their effect if positions
# don't restart: zero, or rounding error (experts get other numbers of tokens). Fresh weights of a
# state-space or convolution layer are small, so what leaks through it can be small too.
_ROUNDING = {torch.float32: 1e-4}
_ROUNDING_OF_OTHERS = 0.1


@torch.no_grad()
def isolates_documents(model: PreTrainedModel) -> bool:
    """Whether `position_ids` that restart at each document isolate the documents of a row.

    A document is put into two rows, at different offsets and with different neighbours. If it is
    isolated, its logits are the same in both. The rows have the same shape and so use the same
    kernels, which makes this true for weights of any type. If it isn't isolated, the difference is
    as large as if the row were a single document.
    """
    vocabulary = model.config.get_text_config().vocab_size
    document = [11, 12, 13, 14]
    rows = [[1, 2, 3, 4, *document], [5, *document, 6, 7, 8]]
    offsets = [4, 1]
    tokens = torch.tensor(rows, device=model.device) % vocabulary
    restarting = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], [0, 0, 1, 2, 3, 0, 1, 2]])

    def difference(positions: Tensor) -> float:
        positions = positions.to(model.device)
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        first, second = (
            row[offset : offset + len(document)]
            for row, offset in zip(logits.float(), offsets, strict=True)
        )
        return float((first - second).abs().max())

    one_document = torch.arange(8).expand(2, -1)
    rounding = _ROUNDING.get(model.dtype, _ROUNDING_OF_OTHERS)
    # Strictly less: no effect at all would prove nothing.
    return difference(restarting) < rounding * difference(one_document)


@contextmanager
def compute_in_fp32(model: PreTrainedModel) -> Iterator[None]:
    """Have a model compute in fp32 during the body; only one block at a time is held in it."""
    blocks = blocks_of(model)
    # They may lie in a file; converting back would copy them into memory.
    tensors = {weight: weight.data for weight in model.parameters()}
    in_blocks = set(chain.from_iterable(block.parameters() for block in blocks))
    others = tensors.keys() - in_blocks

    def convert(module: nn.Module, *_: object) -> None:
        for weight in module.parameters():
            weight.data = weight.data.float()

    def restore(module: nn.Module, *_: object) -> None:
        for weight in module.parameters():
            weight.data = tensors[weight]

    for weight in others:
        weight.data = weight.data.float()
    with ExitStack() as hooks:
        for block in blocks:
            hooks.enter_context(block.register_forward_pre_hook(convert))
            hooks.enter_context(block.register_forward_hook(restore))
        yield
    for weight in others:
        weight.data = tensors[weight]


def check_isolation(model: PreTrainedModel) -> None:
    """Check that documents packed into a row don't attend to each other.

    Raises:
        UserError: if they do; training would silently mix the documents.
    """
    kind = model.config.model_type
    if not isolates_documents(model):
        raise UserError(
            "data.packing",
            f"packed documents would attend to each other in {kind}",
            "set it to auto or false",
        )
