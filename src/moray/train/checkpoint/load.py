"""Read checkpoints, safely, wherever they come from.

A checkpoint's `.metadata` is a pickle. PyTorch would unpickle it unchecked and so run any code that
the file names, so `MetadataReader` only loads descriptions of tensors. Values other than tensors
don't occur in our checkpoints and are refused, because PyTorch would unpickle those too. Tensors
are read by `torch.load(weights_only=True)`.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.serialization import _get_layout
from transformers import PreTrainedModel

from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.load import load_model
from moray.provenance.manifest import damaged_files
from moray.train.optimizer import trained_parameters
from moray.train.statistics import statistics_of

# Classes that describe tensors and where they are stored.
_DESCRIPTIONS = (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
    _MEM_FORMAT_ENCODING,
    _StorageInfo,
    _get_layout,
    torch.Size,
)
# The folder that a checkpoint was written to; Python 3.13 moved its class to another module.
_FOLDER_MODULES = ("pathlib", "pathlib._local")
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(entry.__module__, entry.__qualname__): entry for entry in _DESCRIPTIONS},
    **{(module, type(Path()).__name__): type(Path()) for module in _FOLDER_MODULES},
    **{("torch", name): kind for name, kind in vars(torch).items() if type(kind) is torch.dtype},
}


class MetadataReader(FileSystemReader):
    """A reader of a checkpoint's files that checks `.metadata` before PyTorch uses it."""

    def __init__(self, folder: Path) -> None:
        """Read a checkpoint's metadata.

        Done here rather than in `read_metadata`, where PyTorch swallows exceptions.

        Raises:
            UserError: if the metadata holds anything but descriptions of tensors.
        """
        super().__init__(folder)
        self._metadata = _read(folder)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata read on construction; no checkpoint has metadata per worker."""
        storage = self._metadata.storage_meta or StorageMeta()
        storage.load_id = self.load_id
        self._metadata.storage_meta = storage
        return self._metadata


class _Unpickler(pickle.Unpickler):
    """Only allows listed names, and imports nothing."""

    def __init__(self, file: BinaryIO, folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return self._memory_format
        if (module, name) not in _ALLOWED:
            raise _refusal(self._folder, f"metadata that names {module}.{name}")
        return _ALLOWED[module, name]

    def _memory_format(self, kind: Any, name: str) -> _MEM_FORMAT_ENCODING:
        """What Python 3.11.0 to 3.11.3 write as an attribute of its enumeration."""
        if kind is not _MEM_FORMAT_ENCODING:
            raise _refusal(self._folder, "metadata that names builtins.getattr")
        return _MEM_FORMAT_ENCODING[name]


def _read(folder: Path) -> Metadata:
    with (folder / ".metadata").open("rb") as file:
        try:
            metadata = _Unpickler(file, folder).load()
        except UserError:
            raise
        # A pickle can break in any way.
        except Exception as error:
            raise _refusal(folder, f"metadata that can't be read ({error})") from error
    if not isinstance(metadata, Metadata):
        raise _refusal(folder, f"{type(metadata).__name__} as metadata")
    return metadata


def _refusal(folder: Path, got: str) -> UserError:
    return UserError(
        str(folder),
        f"got {got}, expected descriptions of tensors only",
        "moray didn't write this checkpoint; delete it and run the same command again",
    )


def names_in(folder: Path) -> set[str]:
    """The names of a checkpoint's tensors."""
    return {*MetadataReader(folder).read_metadata().state_dict_metadata}


def read_state(folder: Path, state: dict[str, Tensor], alone: bool = False) -> None:
    """Fill tensors of the right shapes, or shards of them, by name, from a valid checkpoint."""
    load(
        state,
        storage_reader=MetadataReader(folder),
        no_dist=alone or not dist.is_initialized(),
    )


def trained_model(
    start: Path,
    checkpoint: Path,
    adapter: Adapter | None,
    load: Callable[[Path], PreTrainedModel] = load_model,
) -> PreTrainedModel:
    """The model that a run started from, with the weights of a checkpoint.

    Args:
        checkpoint: saved by any strategy and number of workers.
        adapter: the run's `adapter` section; if given, the model has adapters in addition.

    Raises:
        UserError: if the checkpoint has missing or damaged files.
    """
    if damaged := damaged_files(checkpoint):
        raise UserError(
            str(checkpoint),
            f"missing or damaged files: {', '.join(damaged)}",
            "rerun with --forcerun finetune_run",
        )
    model = load(start)
    read_state(checkpoint, with_adapters(model, adapter), alone=True)
    return model


def with_adapters(model: PreTrainedModel, adapter: Adapter | None) -> dict[str, Tensor]:
    """Add a run's adapters to a model; returns the tensors that its checkpoints have, by name."""
    if adapter is not None:
        # PEFT takes a while to import, also for those who only read tensors.
        from moray.model.adapter import add_adapter

        add_adapter(model, adapter, seed=0)
    tensors = {**trained_parameters(model), **statistics_of(model)}
    return {name: value.detach() for name, value in tensors.items()}
