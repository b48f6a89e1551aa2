"""Safe loading of a checkpoint's `.metadata`, a pickle: only tensor descriptions are allowed.

PyTorch would unpickle it unchecked and so run any code that the file names. Values other than
tensors don't occur in our checkpoints and are refused, because PyTorch would unpickle those too.
"""

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import torch
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
from torch.serialization import _get_layout

from moray.errors import UserError

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
        if (module, name) not in _ALLOWED:
            raise _refusal(self._folder, f"metadata that names {module}.{name}")
        return _ALLOWED[module, name]


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
