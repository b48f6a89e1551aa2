"""A base that exists already, on this machine or on a hub whose connection breaks."""

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import Hub, Repository, hub_server

from moray.errors import UserError
from moray.model.obtain import copy_folder, download_snapshot

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WANTED = [
    "additional_chat_templates/rag.jinja",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "config.json",
    "merges.txt",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
]
UNWANTED = [
    "manifest.json",
    "README.md",
    "modeling_custom.py",
    "optimizer.pt",
    "pytorch_model.bin",
    "rng_state.pth",
    "training_args.bin",
    "original/consolidated.00.pth",
    "onnx/model.safetensors",
    "additional_chat_templates/code.py",
    "elsewhere/tool_use.jinja",
]


def fill(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"content of {name}")


def test_pickles_and_code_are_left_behind(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    fill(source, WANTED + UNWANTED)
    copy_folder(source, target)
    copied = [path for path in target.rglob("*") if path.is_file()]
    assert sorted(path.relative_to(target).as_posix() for path in copied) == WANTED
    assert all((target / name).read_text() == f"content of {name}" for name in WANTED)


def test_what_links_point_to_is_copied(tmp_path: Path) -> None:
    fill(tmp_path / "blobs", ["abc"])
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "model.safetensors").symlink_to("../blobs/abc")
    copy_folder(source, target)
    assert not (target / "model.safetensors").is_symlink()
    assert (target / "model.safetensors").read_text() == "content of abc"


@pytest.mark.parametrize("names", [[], ["config.json", "pytorch_model.bin"], None])
def test_without_safetensors_nothing_is_copied(tmp_path: Path, names: list[str] | None) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    if names is not None:
        source.mkdir()
        fill(source, names)
    with pytest.raises(UserError) as caught:
        copy_folder(source, target)
    assert str(caught.value).startswith(f"{source}: the folder has no weights in .safetensors")
    assert list(target.iterdir()) == []


def download(cache: Path, repo_id: str, revision: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's library reads its settings when it is imported."""
    code = (
        "import sys\n"
        "from moray.errors import UserError\n"
        "from moray.model.obtain import download_snapshot\n"
        "try: print(download_snapshot(*sys.argv[1:]))\n"
        "except UserError as error: sys.exit(str(error))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, repo_id, revision],
        env=os.environ | {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_commit_in_the_local_cache_is_found_without_a_network(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--owner--name/snapshots" / COMMIT
    fill(snapshot, WANTED)
    fill(tmp_path / "models--owner--name/refs", ["main"])
    done = download(tmp_path, "owner/name", COMMIT)
    assert done.stdout.strip() == str(snapshot), done.stderr


@pytest.mark.parametrize("repo_id", ["owner/name", "owner/missing", "no--valid..name"])
def test_a_commit_that_cannot_be_had_costs_one_line(tmp_path: Path, repo_id: str) -> None:
    fill(tmp_path / "models--owner--name/snapshots" / COMMIT, WANTED)
    other = COMMIT[::-1]
    done = download(tmp_path, repo_id, other)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{repo_id}: can't download commit {other}")
    assert done.stderr.count("\n") == 1


def test_a_full_disk_is_not_taken_for_a_network_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("moray.model.obtain.snapshot_download", fail)
    with pytest.raises(OSError, match="No space left"):
        download_snapshot("owner/name", COMMIT)


CODE = """
import sys
from moray.model.obtain import download_snapshot
print(download_snapshot(*sys.argv[1:3], weights=len(sys.argv) == 3))
"""
# The library writes pieces of 10 MiB.
PIECE = 10 * 1024 * 1024


def downloaded(hub: Hub, home: Path, *options: str) -> Path:
    with hub_server(hub):
        done = subprocess.run(
            [sys.executable, "-c", CODE, "owner/name", COMMIT, *options],
            env=os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home)},
            capture_output=True,
            text=True,
            check=True,
        )
    return Path(done.stdout.strip())


def test_weights_that_are_not_wanted_are_not_downloaded(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"weights"}
    hub = Hub({("models", "owner/name"): Repository(files, COMMIT)})
    folder = downloaded(hub, tmp_path, "without weights")
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    assert not [path for _, path, _ in hub.requests if path.endswith("/model.safetensors")]


@pytest.mark.long
def test_a_download_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    weights = random.Random(3).randbytes(2 * PIECE)
    files = {"config.json": b"{}", "model.safetensors": weights, "pytorch_model.bin": b"a pickle"}
    hub = Hub({("models", "owner/name"): Repository(files, COMMIT)})
    hub.cut["model.safetensors"] = PIECE + 5
    folder = downloaded(hub, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert not (folder / "pytorch_model.bin").exists()
    ranges = [
        span
        for method, path, span in hub.requests
        if method == "GET" and path.endswith("/model.safetensors")
    ]
    assert ranges == [None, f"bytes={PIECE}-"]
