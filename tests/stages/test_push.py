"""Models uploaded to a hub of the tests, and loaded again from there."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub, Repository, hub_server
from run_stage import stage_command
from safetensors.torch import load_file

from moray.provenance.manifest import sha256_file, write_manifest

pytestmark = pytest.mark.long

REPO = "user/tuned"
# The libraries read their settings when they are imported, so they get processes of their own.
LOAD = """
import sys
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], revision=sys.argv[2])
save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, sys.argv[3])
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server(Hub(tokens={"hf_write": "write", "hf_read": "read"})) as serving:
        yield serving


@pytest.fixture
def run(model_folder: Path, tmp_path: Path) -> Path:
    """The folder of a run with its model and card."""
    folder = tmp_path / "run"
    shutil.copytree(model_folder, folder / "model")
    (folder / "model/README.md").write_text("without the evaluation")
    (folder / "README.md").write_text("---\nlicense: mit\n---\nwith the evaluation\n")
    write_manifest(folder / "model")
    return folder


def python(hub: Hub, token: str | None, folder: Path, *arguments: str) -> Any:
    environment = os.environ | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(folder / "cache"),
        # The server knows LFS alone.
        "HF_HUB_DISABLE_XET": "1",
    }
    environment.pop("HF_TOKEN", None)
    if token:
        environment["HF_TOKEN"] = token
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def push(hub: Hub, token: str | None, run: Path, **section: Any) -> Any:
    cfg = {"private": True, "repo": REPO, "run": "tuned", **section}
    model, card, output = (run / name for name in ("model", "README.md", "pushed.json"))
    command = stage_command("push", model=model, card=card, output=output, cfg=cfg)
    return python(hub, token, run, *command[1:])


def test_an_uploaded_model_is_the_one_that_is_loaded_from_there(hub: Hub, run: Path) -> None:
    done = push(hub, "hf_write", run)
    assert done.returncode == 0, done.stderr
    repository = hub.repositories["models", REPO]
    receipt = json.loads((run / "pushed.json").read_text())
    assert (receipt["repo"], receipt["commit"]) == (REPO, repository.commit)
    assert repository.private
    expected = {
        file.name: sha256_file(file)
        for file in (run / "model").iterdir()
        if file.name not in ("manifest.json", "README.md")
    } | {"README.md": sha256_file(run / "README.md")}
    assert {name: entry["sha256"] for name, entry in receipt["files"].items()} == expected
    assert repository.files.keys() == {*expected, ".gitattributes"}
    assert b"with the evaluation" in repository.files["README.md"]
    loaded = python(
        hub, "hf_write", run, "-c", LOAD, REPO, receipt["commit"], str(run / "again.safetensors")
    )
    assert loaded.returncode == 0, loaded.stderr
    files = run / "model/model.safetensors", run / "again.safetensors"
    original, again = map(load_file, files)
    assert original
    assert all(again[name].equal(tensor) for name, tensor in original.items())
    assert "hf_write" not in done.stdout + done.stderr + (run / "pushed.json").read_text()


def test_of_an_earlier_upload_only_weights_that_are_not_replaced_go(hub: Hub, run: Path) -> None:
    files = {"model-00002-of-00002.safetensors": b"old", "notes.md": b"mine", ".gitattributes": b""}
    hub.repositories["models", REPO] = Repository(files, "0" * 40)
    done = push(hub, "hf_write", run)
    assert done.returncode == 0, done.stderr
    there = hub.repositories["models", REPO].files
    assert "model-00002-of-00002.safetensors" not in there
    assert there["notes.md"] == b"mine"
    assert there["model.safetensors"] == (run / "model/model.safetensors").read_bytes()
    # Once more: the same content, and nothing breaks.
    assert push(hub, "hf_write", run).returncode == 0


def test_a_repository_is_created_where_and_as_the_config_says(hub: Hub, run: Path) -> None:
    for repo, private in (("user/closed", True), ("user/open", False)):
        done = push(hub, "hf_write", run, repo=repo, private=private)
        assert done.returncode == 0, done.stderr
        assert hub.repositories["models", repo].private == private


@pytest.mark.parametrize(
    ("token", "line"),
    [
        (None, "runs.tuned.push: pushing to the Hub needs a token; run `hf auth login`"),
        ("hf_read", "runs.tuned.push.repo: the token doesn't permit this with user/tuned; run"),
        ("hf_wrong", "runs.tuned.push.repo: the Hub doesn't accept the token; run `hf auth"),
    ],
)
def test_a_token_that_does_not_permit_it_costs_one_line(
    token: str | None, line: str, hub: Hub, run: Path
) -> None:
    done = push(hub, token, run)
    assert done.returncode == 1
    (said,) = done.stderr.strip().splitlines()
    assert said.startswith(f"error: {line}")
    assert not (run / "pushed.json").exists()
