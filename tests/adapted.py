"""Folders with an adapter alone, as a run exports it."""

from pathlib import Path

import torch

from moray.config.schema.train import Adapter
from moray.model.adapter import add_adapter, save_adapter
from moray.model.folder import base_reference
from moray.model.load import load_model
from moray.provenance.manifest import write_manifest


@torch.no_grad()
def write_adapter(base: Path, folder: Path, adapter: Adapter) -> Path:
    """Write an adapter of a base that does something; the manifest names the base."""
    model = load_model(base)
    add_adapter(model, adapter, seed=3)
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.requires_grad:
            weight += 0.1 * torch.randn_like(weight)
    save_adapter(model, adapter, folder, torch.float32)
    write_manifest(folder, base=base_reference(folder, base))
    return folder
