"""Whether documents that share a row see each other, which depends on the architecture."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moray.errors import UserError

# Of the effect that neighbours have on a document where positions don't restart. Isolated, they
# have none, or rounding's where experts get other numbers of tokens; else, nearly all of it.
_REMAINING_EFFECT = 0.1


@torch.no_grad()
def isolates_documents(model: PreTrainedModel) -> bool:
    """Whether `position_ids` that restart keep each document of a row to itself.

    A document is put into two rows, at different offsets and beside different neighbours: if it is
    isolated, its logits are the same in both. Rows of one shape go through the same kernels, so
    this holds whatever the weights are held in. Where it doesn't hold, the difference is as large
    as in rows that are one document throughout.
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
    # Strictly less: no effect at all would prove nothing.
    return difference(restarting) < _REMAINING_EFFECT * difference(one_document)


def check_isolation(model: PreTrainedModel) -> None:
    """Make sure that documents packed into a row don't see each other.

    Raises:
        UserError: if they do; packed training would silently leak.
    """
    kind = model.config.model_type
    if not isolates_documents(model):
        raise UserError(
            "data.packing",
            f"documents that share a row see each other in a model of type {kind}",
            "set it to auto or false",
        )
