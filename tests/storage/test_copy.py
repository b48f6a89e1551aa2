"""Copies of a store in a real object store."""

from pathlib import Path

import fsspec
import pytest
from object_store import object_store

from moray.errors import UserError
from moray.provenance.manifest import write_manifest
from moray.storage.transfer import copy_to


@pytest.fixture
def small_store(tmp_path: Path) -> Path:
    folder = tmp_path / "notes-tiny-0123abcd"
    folder.mkdir()
    (folder / "train.rows").write_bytes(b"rows")
    write_manifest(folder, block_size=8)
    return folder


def test_a_copy_has_every_file_and_is_made_again_only_when_the_store_has_changed(
    small_store: Path,
) -> None:
    with object_store() as bucket:
        url = copy_to(small_store, f"{bucket}/tokens/")
        assert url == f"{bucket}/tokens/notes-tiny-0123abcd"
        files, path = fsspec.core.url_to_fs(url)
        for file in small_store.iterdir():
            assert files.cat_file(f"{path}/{file.name}") == file.read_bytes()

        files.pipe_file(f"{path}/train.rows", b"left alone")
        copy_to(small_store, f"{bucket}/tokens")
        assert files.cat_file(f"{path}/train.rows") == b"left alone"

        (small_store / "train.rows").write_bytes(b"others")
        (small_store / "manifest.json").unlink()
        files.pipe_file(f"{path}/validation.rows", b"of the old store")
        write_manifest(small_store, block_size=8)
        copy_to(small_store, f"{bucket}/tokens")
        files.invalidate_cache()
        assert {Path(name).name for name in files.ls(path)} == {"train.rows", "manifest.json"}
        assert files.cat_file(f"{path}/train.rows") == b"others"


def test_a_copy_without_its_manifest_was_cut_off_and_is_made_again(small_store: Path) -> None:
    with object_store() as bucket:
        files, path = fsspec.core.url_to_fs(copy_to(small_store, bucket))
        files.rm_file(f"{path}/manifest.json")
        files.pipe_file(f"{path}/train.rows", b"ro")
        copy_to(small_store, bucket)
        assert files.cat_file(f"{path}/train.rows") == b"rows"


def test_a_bucket_that_is_not_there_costs_one_line(small_store: Path) -> None:
    with object_store(), pytest.raises(UserError) as caught:
        copy_to(small_store, "s3://no-such-bucket/tokens")
    assert str(caught.value).startswith(
        "data.stream_from: can't write to s3://no-such-bucket/tokens ("
    )
    assert "\n" not in str(caught.value)
