"""A model downloaded from a hub whose connection breaks."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import Hub, Repository, hub_server

CODE = """
import sys
from moray.model.obtain import download_snapshot
print(download_snapshot(*sys.argv[1:3], weights=len(sys.argv) == 3))
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
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
