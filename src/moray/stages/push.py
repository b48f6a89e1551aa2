"""Upload a run's model to the Hugging Face Hub, and keep a receipt."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from moray.console import say
from moray.errors import ConfigError
from moray.hub import explain_refusals, has_token, missing_token_error
from moray.provenance.manifest import read_manifest, write_json

_CARD = "README.md"
_WEIGHTS = (".safetensors", ".safetensors.index.json")


def push(model: Path, card: Path, output: Path, cfg: dict[str, Any]) -> None:
    """Upload a model with its card in one commit, and write what was uploaded.

    Weights of an earlier upload that aren't part of this one are deleted by the same commit; other
    files that are there stay.

    Raises:
        ConfigError: if there is no token.
        UserError: if the token doesn't permit it.
    """
    run, repo = cfg["run"], cfg["repo"]
    if not has_token():
        raise ConfigError([missing_token_error(run)])
    additions = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=file)
        for name, file in _files(model, card)
    ]
    names = {each.path_in_repo for each in additions}
    api = HfApi()
    with explain_refusals(f"runs.{run}.push.repo", repo):
        api.create_repo(repo, private=cfg["private"], exist_ok=True)
        old = (name for name in api.list_repo_files(repo) if name.endswith(_WEIGHTS))
        deletions = [CommitOperationDelete(path_in_repo=name) for name in old if name not in names]
        commit = api.create_commit(
            repo, [*additions, *deletions], commit_message=f"Upload {run} with moray"
        )
    files = {
        each.path_in_repo: {
            "sha256": each.upload_info.sha256.hex(),
            "size": each.upload_info.size,
        }
        for each in additions
    }
    write_json(output, {"run": run, "repo": repo, "commit": commit.oid, "files": files})
    say(f"{run} is at {commit.commit_url}")


def _files(model: Path, card: Path) -> Iterator[tuple[str, Path]]:
    """The files by their names in the repository.

    The manifest isn't uploaded: it has the digest of the card without the evaluation.
    """
    for name in read_manifest(model)["files"]:
        yield name, card if name == _CARD else model / name
