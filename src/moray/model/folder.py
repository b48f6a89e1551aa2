"""The contents of a model's folder: a full model, or an adapter whose manifest names its base."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from moray.errors import UserError, first_line
from moray.model.shapes import weight_files
from moray.provenance.manifest import MANIFEST, sha256_file

# For transformers' `from_pretrained`: never ask the hub, and never ask on the terminal whether to
# run code from the folder.
LOCAL = {"local_files_only": True, "trust_remote_code": False}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Types of weights, by their names in the config."""

_STORED = {"BF16": torch.bfloat16, "F16": torch.float16}


def base_reference(folder: Path, base: Path) -> dict[str, str]:
    """The reference to an adapter's base for the manifest of its folder.

    The path is relative to the adapter's folder, so that it stays valid if the workflow's folder is
    moved, and doesn't depend on a worker's current directory.
    """
    path = os.path.relpath(base.absolute(), folder.absolute())
    return {"path": path, "manifest": sha256_file(base / MANIFEST)}


def whole_model_and_adapters(folder: Path) -> tuple[Path, list[Path]]:
    """The folder of the full model, and the folders of the adapters on top of it, in order.

    The base is looked up only in the manifest, which the workflow writes. `adapter_config.json`,
    which can come from anyone, is never used.

    Raises:
        UserError: if a base is missing, or isn't the one that the adapter was trained on.
    """
    adapters: list[Path] = []
    while reference := _reference(folder):
        adapters.insert(0, folder)
        folder = _base(folder, reference)
    return folder, adapters


def base_of_adapter(folder: Path) -> Path:
    """The folder of the model that the adapter in a folder was trained on.

    Raises:
        UserError: if the folder has a whole model, or the base is missing or has changed.
    """
    reference = _reference(folder)
    if reference is None:
        raise UserError(
            "adapter.create_new_adapter",
            f"got false, and {folder} has a whole model, so there is no adapter to train further",
            "set export.merge_adapter: false in the run that it comes from",
        )
    _base(folder, reference)
    # As the folder is named: relative to the workflow, or not.
    return Path(os.path.normpath(folder / reference["path"]))


def is_model(folder: Path) -> bool:
    """Whether a folder has a model or an adapter; others have rows or documents."""
    return (folder / "config.json").is_file() or _reference(folder) is not None


def stored_dtype(folder: Path) -> torch.dtype:
    """The most common weight type in a full model's safetensors: bf16 or fp16, otherwise fp32.

    Raises:
        UserError: if a file is damaged.
    """
    sizes = _stored_sizes(folder)
    most = max(sizes, key=lambda name: sizes[name], default="F32")
    return _STORED.get(most, torch.float32)


def unrounded_dtype(folder: Path, dtype: torch.dtype) -> torch.dtype:
    """`dtype` if all weights in a full model's safetensors are stored in it, otherwise fp32.

    Raises:
        UserError: if a file is damaged.
    """
    stored = {_STORED.get(name) for name in _stored_sizes(folder)}
    return dtype if stored == {dtype} else torch.float32


def _stored_sizes(folder: Path) -> dict[str, int]:
    """The number of weights of each type in a full model's safetensors."""
    sizes: dict[str, int] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - it is no mapping
                    part = weights.get_slice(name)
                    size = torch.Size(part.get_shape()).numel()
                    sizes[part.get_dtype()] = sizes.get(part.get_dtype(), 0) + size
        except SafetensorError as error:
            raise UserError(
                str(file), f"can't read the weights ({first_line(error)})", "copy the file again"
            ) from error
    return sizes


def _reference(folder: Path) -> dict[str, str] | None:
    path = folder / MANIFEST
    if not path.is_file():
        return None
    manifest: dict[str, Any] = json.loads(path.read_text())
    return manifest.get("base")


def _base(folder: Path, reference: dict[str, str]) -> Path:
    base = Path(os.path.normpath(folder.absolute() / reference["path"]))
    manifest = base / MANIFEST
    if not manifest.is_file():
        raise UserError(
            str(folder),
            f"the base of this adapter is missing: no model in {base}",
            "run the workflow again to create it, or keep both in one results folder",
        )
    if sha256_file(manifest) != reference["manifest"]:
        raise UserError(
            str(folder),
            f"the base of this adapter, {base}, has changed since the adapter was trained",
            "run the workflow again to train the adapter on it",
        )
    return base
