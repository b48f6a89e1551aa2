"""Make a base model: from scratch, from a local folder, or from the hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moray.console import say
from moray.corpus.dataset import num_groups, read_group
from moray.corpus.document import plain_text
from moray.hub import refusals_explained
from moray.model.isolation import isolates_documents
from moray.model.load import load_model
from moray.model.obtain import copy_folder, download_snapshot
from moray.model.scratch import save_llama, train_tokenizer
from moray.provenance.manifest import whole_or_nothing, write_manifest
from moray.tasks.language.tokenizer import load_tokenizer

# 4 MB each. A tokenizer hardly changes with more, and training on them takes a minute.
_GROUPS_TO_LEARN_FROM = 64


def base_model(output: Path, cfg: dict[str, Any], dataset: Path | None = None) -> None:
    """Write a Hugging Face folder, its manifest last.

    Args:
        output: folder to write to.
        cfg: the model's section of the config.
        dataset: for a model from scratch, folder of the dataset to train its tokenizer on.
    """
    with (
        refusals_explained(f"models.{output.name}", str(cfg.get("repo_id"))),
        whole_or_nothing(output),
    ):
        if cfg["source"] == "scratch":
            _from_scratch(output, cfg, dataset)
        else:
            _copied(output, cfg)
        # Load it once, so that errors show up here rather than after the dataset's download.
        load_tokenizer(output)
        model = load_model(output)
        parameters: int = model.num_parameters()
        write_manifest(
            output,
            model=cfg,
            parameters=parameters,
            architecture=model.config.model_type,
            isolates_documents=isolates_documents(model),
        )
    say(f"model {output.name}: {parameters / 1e6:.1f} M parameters")


def _from_scratch(output: Path, cfg: dict[str, Any], dataset: Path | None) -> None:
    if dataset is None:
        raise ValueError("a model from scratch needs a dataset for its tokenizer")
    texts = _texts(dataset / "train.parquet")
    tokenizer = train_tokenizer(texts, cfg["tokenizer"]["vocab_size"])
    save_llama(output, tokenizer, cfg)


def _copied(output: Path, cfg: dict[str, Any]) -> None:
    hub = cfg["source"] == "hub"
    source = download_snapshot(cfg["repo_id"], cfg["revision"]) if hub else Path(cfg["path"])
    copy_folder(source, output)


def _texts(file: Path) -> Iterator[str]:
    """The documents of evenly spaced row groups of a large file; all documents of a small one."""
    groups = num_groups(file)
    for group in range(0, groups, -(-groups // _GROUPS_TO_LEARN_FROM)):
        yield from map(plain_text, read_group(file, group))
