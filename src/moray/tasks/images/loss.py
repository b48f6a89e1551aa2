"""The loss of labelled images."""

import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from moray.errors import UserError, first_line
from moray.tasks.images.batch import IGNORED, Batch
from moray.tasks.interface import LossModule


class ImageLoss(LossModule):
    """Cross-entropy of the labels of a batch, in nats."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """Sum of the losses of the images, fp32, shape ()."""
        return F.cross_entropy(
            self.logits(batch), batch.labels, reduction="sum", ignore_index=IGNORED
        )

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the classes, fp32, shape (images, classes)."""
        try:
            logits: Tensor = self.model(pixel_values=batch.pixels).logits
        except ValueError as error:
            if not (self.training and len(batch.labels) == 1):
                raise
            raise UserError(
                "train.micro_batch_size",
                f"a forward pass has a single image, too few for BatchNorm ({first_line(error)})",
                "raise it, or change global_batch_size, so that each has two or more",
            ) from error
        return logits.float()
