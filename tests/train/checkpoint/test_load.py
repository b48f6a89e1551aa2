"""What a checkpoint's files say is read as data, whatever they are made to say."""

import pickle
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import are_equal, tensors_of
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    StorageMeta,
)
from torch.distributed.checkpoint.state_dict_saver import save

from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.load import load_model
from moray.provenance.manifest import damaged_files, write_manifest
from moray.storage.folder import FolderStorage
from moray.storage.interface import folder_of, path_of
from moray.train.checkpoint.load import MetadataReader, read_state, trained_model
from moray.train.checkpoint.save import Saver
from moray.train.loop import train
from moray.workers.entry import Worker

STATE = {
    "weight": torch.arange(15.0).view(3, 5),
    "half": torch.ones(4, dtype=torch.bfloat16),
    "quantized": torch.arange(4, dtype=torch.uint8),
    "step": torch.tensor(3),
}


class Call:
    """Is called when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound checkpoint."""
    storage = FolderStorage(tmp_path)
    saver = Saver(storage, keep=1, timeout=60)
    saver.save(3, STATE, best=None)
    saver.finish()
    return storage.fetch(3)


def read(folder: Path) -> dict[str, Tensor]:
    """The state of a checkpoint whose manifest holds."""
    assert damaged_files(folder) == []
    found = {name: torch.zeros_like(value) for name, value in STATE.items()}
    read_state(folder, found)
    return found


def refusal(folder: Path) -> str:
    """What reading costs, although the manifest holds."""
    write_manifest(folder, step=3)
    with pytest.raises(UserError) as caught:
        read(folder)
    line = str(caught.value)
    assert line.startswith(f"{folder}: got ")
    assert "\n" not in line
    return line


def test_a_checkpoint_of_all_kinds_of_tensors_reads_back(folder: Path) -> None:
    found = read(folder)
    assert are_equal(found, STATE)
    taken, given = (kind(folder).read_metadata() for kind in (MetadataReader, FileSystemReader))
    assert taken.state_dict_metadata == given.state_dict_metadata
    assert taken.storage_data == given.storage_data


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_a_checkpoint_written_under_another_python_reads_back(folder: Path, module: str) -> None:
    """Python 3.13 moved the class of the folder that the metadata names."""
    metadata = FileSystemReader(folder).read_metadata()
    metadata.storage_meta = StorageMeta(checkpoint_id="a marker")
    # In its place a path, as each Python writes it: the class, its arguments, the call.
    path = f"c{module}\nPosixPath\n(V/folder\ntR".encode()
    marker = re.compile(rb"X\x08\0\0\0a markerq.", re.DOTALL)
    written, count = marker.subn(path, pickle.dumps(metadata, protocol=2))
    assert count == 1
    (folder / ".metadata").write_bytes(written)
    write_manifest(folder, step=3)
    found = MetadataReader(folder).read_metadata().storage_meta
    assert found is not None
    assert found.checkpoint_id == Path("/folder")
    assert are_equal(read(folder), STATE)


class AsPython3112(pickle.Pickler):
    """Writes members of an enumeration as Python 3.11.2 does, which Debian 12 has."""

    def reducer_override(self, value: Any) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def test_a_checkpoint_written_under_python_3_11_2_reads_back(folder: Path) -> None:
    metadata = FileSystemReader(folder).read_metadata()
    with (folder / ".metadata").open("wb") as file:
        AsPython3112(file).dump(metadata)
    assert b"getattr" in (folder / ".metadata").read_bytes()
    write_manifest(folder, step=3)
    assert are_equal(read(folder), STATE)
    found = MetadataReader(folder).read_metadata()
    assert found.state_dict_metadata == metadata.state_dict_metadata


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("posix.system", lambda canary: Call(__import__("os").system, f"touch {canary}")),
        ("builtins.eval", lambda canary: Call(eval, f"open({str(canary)!r}, 'w')")),
        ("builtins.getattr", lambda canary: Call(getattr, canary, "touch")),
        ("builtins.getattr", lambda _: Call(getattr, torch.Size, "mro")),
        ("pathlib.Path.touch", lambda canary: Call(Path.touch, canary)),
        ("torch.load", lambda canary: Call(torch.load, str(canary))),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_nothing_in_the_metadata_is_called(
    name: str, make: Callable[[Path], Call], nested: bool, folder: Path, tmp_path: Path
) -> None:
    trap: Any = make(tmp_path / "canary")
    if nested:
        trap = Metadata({}, storage_data={"weight": trap}, planner_data=[trap])
    (folder / ".metadata").write_bytes(pickle.dumps(trap))
    assert name.rpartition(".")[0] in refusal(folder)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "name", ["Size.__init__", "Size.__class__", "load", "hub.load", "__builtins__"]
)
def test_no_way_leads_from_an_allowed_name_to_another(folder: Path, name: str) -> None:
    """A dotted name would be looked up part by part."""
    stack_global = b"\x80\x04\x8c\x05torch\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
    (folder / ".metadata").write_bytes(stack_global)
    assert f"got metadata that names torch.{name}, expected descriptions" in refusal(folder)


def test_a_value_that_is_no_tensor_is_not_unpickled(tmp_path: Path) -> None:
    """PyTorch itself reads these with `weights_only=False`, wherever the metadata has one."""
    folder = tmp_path / "step-00000003"
    canary = tmp_path / "canary"
    trapped = {name: Call(Path.touch, canary) for name in STATE}
    save(trapped, checkpoint_id=folder, no_dist=True)
    assert not canary.exists()
    assert BytesStorageMetadata.__name__ in refusal(folder)
    assert not canary.exists()


def test_a_pickle_in_a_file_of_tensors_is_not_run(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (data,) = folder.glob("*.distcp")
    torch.save(Call(Path.touch, canary), data)
    metadata = FileSystemReader(folder).read_metadata()
    for place in metadata.storage_data.values():
        place.offset, place.length = 0, data.stat().st_size
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    write_manifest(folder, step=3)
    with pytest.raises(CheckpointException, match="Weights only load failed"):
        read(folder)
    assert not canary.exists()
    # It is a trap: where more than weights is asked for, it goes off.
    torch.load(data, weights_only=False)
    assert canary.exists()


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "metadata that can't be read"),
        (b"\x80\x04", "metadata that can't be read"),
        (b"no pickle", "metadata that can't be read"),
        (pickle.dumps({}), "dict as metadata"),
    ],
)
def test_what_is_no_metadata_costs_one_line(folder: Path, content: bytes, got: str) -> None:
    (folder / ".metadata").write_bytes(content)
    assert f"got {got}" in refusal(folder)


def trained(job: Any, worker: Worker) -> Path:
    """The last checkpoint of a job of two steps."""
    train(job, worker)
    return path_of(folder_of(job.work), 2)


def test_the_model_has_the_weights_of_the_checkpoint(
    make_job: Any, alone: Worker, small: Path
) -> None:
    last = trained(make_job(max_steps=2), alone)
    exported = trained_model(small / "model", last, None)
    start = load_model(small / "model").state_dict()
    held = tensors_of(last)
    for name, weights in exported.named_parameters():
        assert torch.equal(weights, held[name])
        assert not torch.equal(weights, start[name])


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}])
def test_a_model_with_adapters_has_theirs_and_the_base_it_started_from(
    make_job: Any, alone: Worker, small: Path, settings: dict[str, Any]
) -> None:
    adapter = Adapter(rank=2, **settings)
    last = trained(make_job(max_steps=2, adapter=adapter), alone)
    exported = trained_model(small / "model", last, adapter)
    start = load_model(small / "model").state_dict()
    held = tensors_of(last)
    added = {name for name, weights in exported.named_parameters() if "lora" in name}
    assert {name for name in held if "/" not in name} == added
    for name, weights in exported.named_parameters():
        expected = held[name] if name in added else start[name.replace(".base_layer", "")]
        assert torch.equal(weights, expected)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "manifest.json"])
def test_a_damaged_checkpoint_is_refused(
    make_job: Any, alone: Worker, small: Path, name: str
) -> None:
    last = trained(make_job(max_steps=2), alone)
    (last / name).write_bytes(b"")
    with pytest.raises(UserError, match="rerun with --forcerun finetune_run"):
        trained_model(small / "model", last, None)
