"""AdamW with decay of matrices alone."""

from torch import nn
from torch.optim import AdamW

from moray.config.schema import Train


def make_optimizer(model: nn.Module, settings: Train) -> AdamW:
    """AdamW (Loshchilov and Hutter, 2019) over all trainable parameters.

    Norms and biases are vectors and are not decayed.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (settings.adam_beta1, settings.adam_beta2)
    return AdamW(groups, lr=settings.learning_rate, betas=betas, fused=True)
