"""What a checkpoint holds, read by PyTorch alone."""

import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, whole, by name."""
    reader = FileSystemReader(folder)
    listed = reader.read_metadata().state_dict_metadata
    state = {
        name: torch.empty(entry.size)
        for name, entry in listed.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    return state
