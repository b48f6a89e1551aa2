"""Obtain an existing base model: a Hugging Face folder on this machine or on the Hub."""

import shutil
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from moray.errors import UserError, first_line
from moray.provenance.lineage import LINEAGE
from moray.provenance.manifest import MANIFEST, PROOF
from moray.provenance.space import is_full_disk

# Weights as safetensors only: files from users are never unpickled.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model"]
# The templates of a tokenizer besides its default one.
_WANTED += ["additional_chat_templates/*.jinja"]


def copy_folder(source: Path, target: Path) -> None:
    """Copy the model and tokenizer files of a Hugging Face folder.

    Links are followed, because the Hub's cache consists of links.

    Raises:
        UserError: if the folder has no safetensors, or contains an adapter.
    """
    if (source / "adapter_config.json").exists():
        # transformers would load the base that the file names, from anywhere.
        raise UserError(
            str(source),
            "got an adapter (adapter_config.json), expected a full model",
            "merge the adapter into its base with merge_and_unload and save_pretrained",
        )
    files = _files(source)
    if not any(file.suffix == ".safetensors" for file in files):
        raise UserError(
            str(source),
            "the folder has no weights in .safetensors files",
            "convert them with save_pretrained(folder, safe_serialization=True)",
        )
    _copy(files, source, target)


def copy_unchanged(source: Path, target: Path) -> None:
    """Copy what a model's folder has besides weights, and its copy doesn't have yet.

    Such as the processor of a model that also takes images, or the tokenizer of other libraries.
    """
    others = (file for file in _files(source) if ".safetensors" not in file.name)
    missing = [file for file in others if not (target / file.relative_to(source)).exists()]
    _copy(missing, source, target)


def _files(source: Path) -> list[Path]:
    found = {file for pattern in _WANTED for file in source.glob(pattern) if file.is_file()}
    # They would mark the copy as complete, or say of it where the source is from.
    return sorted(file for file in found if file.name not in (MANIFEST, LINEAGE, PROOF))


def _copy(files: list[Path], source: Path, target: Path) -> None:
    for file in files:
        copy = target / file.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)


def hub_config(repo_id: str, revision: str) -> Path | None:
    """The `config.json` of a commit of a Hub repository, from the local cache or the Hub.

    None if it isn't available; downloading the whole model will report the reason.
    """
    try:
        return Path(hf_hub_download(repo_id, "config.json", revision=revision))
    except (HfHubHTTPError, HFValidationError, OSError):
        return None


def download_snapshot(repo_id: str, revision: str, weights: bool = True) -> Path:
    """Download a commit of a Hub repository to the Hub's local cache; returns its folder there.

    Raises:
        UserError: if the Hub can't be reached or doesn't have the commit, or if the repository
            has a file name that leads out of its folder.
        OSError: if the disk of the cache is full.
    """
    try:
        wanted = [name for name in _WANTED if weights or ".safetensors" not in name]
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        if is_full_disk(error):
            raise
        raise UserError(
            repo_id,
            f"can't download commit {revision} ({type(error).__name__})",
            "check the name, the commit, the network and, for gated models, `hf auth login`",
        ) from error
    except ValueError as error:
        raise UserError(
            repo_id,
            f"the repository can't be copied ({first_line(error)})",
            "choose another model",
        ) from error
