"""Image classifiers by plain transformers: pixels by the processor, losses by the model."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from transformers import AutoImageProcessor, AutoModelForImageClassification


def loss_of(folder: Path, rows: NDArray[np.void], device: torch.device) -> float:
    """Mean loss of stored images, nats, in fp32 and evaluation mode.

    Args:
        folder: of the model and its image processor.
        rows: with the fields `pixels` (before they are normalised), `label` and `filled`.
    """
    filled = rows[rows["filled"].astype(bool)]
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    pixels = processor(
        images=list(filled["pixels"]),
        input_data_format="channels_first",
        do_resize=False,
        do_center_crop=False,
        do_convert_rgb=False,
        return_tensors="pt",
    )["pixel_values"]
    model = AutoModelForImageClassification.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
    ).eval()
    labels = torch.from_numpy(filled["label"].astype(np.int64)).to(device)
    with torch.no_grad():
        logits = model.to(device)(pixel_values=pixels.to(device)).logits
    return float(F.cross_entropy(logits.float(), labels))
