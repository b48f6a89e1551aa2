"""A base that exists already: a Hugging Face folder, on this machine or on the hub."""

import shutil
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from moray.errors import UserError, first_line
from moray.provenance.manifest import MANIFEST
from moray.provenance.space import of_full_disk

# Weights as safetensors only: what a user hands in is never unpickled.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model"]
# Where a tokenizer with several templates has those that aren't its default.
_WANTED += ["additional_chat_templates/*.jinja"]


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files of a Hugging Face folder that a model and its tokenizer consist of.

    Links are followed: the hub's own cache consists of them.

    Raises:
        UserError: if it has no safetensors, or is an adapter.
    """
    if (source / "adapter_config.json").exists():
        # transformers would load the folder that it names as its base, wherever that is.
        raise UserError(
            str(source),
            "got adapter_config.json, expected a whole model",
            "merge the adapter into its base with merge_and_unload and save_pretrained",
        )
    found = {file for pattern in _WANTED for file in source.glob(pattern) if file.is_file()}
    # The manifest of a folder of ours would say of the copy that it is whole.
    files = sorted(file for file in found if file.name != MANIFEST)
    if not any(file.suffix == ".safetensors" for file in files):
        raise UserError(
            str(source),
            "got no .safetensors, expected the weights in this form",
            "convert them with save_pretrained(folder, safe_serialization=True)",
        )
    for file in files:
        copy = target / file.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)


def hub_config(repo_id: str, revision: str) -> Path | None:
    """The `config.json` of a commit of a hub repository, from the local cache or the hub.

    None if it can't be had now; whoever downloads the whole model finds out why.
    """
    try:
        return Path(hf_hub_download(repo_id, "config.json", revision=revision))
    except (HfHubHTTPError, HFValidationError, OSError):
        return None


def download_snapshot(repo_id: str, revision: str) -> Path:
    """Bring a commit of a hub repository into the hub's local cache; returns its folder there.

    Raises:
        UserError: if the hub can't be reached or doesn't give the commit, or names a file outside
            of it.
        OSError: if the disk of the cache is full.
    """
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=_WANTED))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        if of_full_disk(error):
            raise
        raise UserError(
            repo_id,
            f"got no snapshot of commit {revision} ({type(error).__name__})",
            "check the name, the commit, the network and, for gated models, `hf auth login`",
        ) from error
    except ValueError as error:
        raise UserError(
            repo_id,
            f"got a repository that can't be copied ({first_line(error)})",
            "choose another model",
        ) from error
