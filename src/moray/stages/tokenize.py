"""Tokenise a dataset once, into the packed store that training and evaluation read."""

import os
import shutil
from pathlib import Path
from typing import Any

from moray.console import progress, say
from moray.corpus.dataset import SPLITS, num_groups, share_of_group
from moray.errors import UserError
from moray.provenance.manifest import MANIFEST, read_manifest, whole_or_nothing, write_manifest
from moray.provenance.space import check_space
from moray.rows.store import describe
from moray.stages.boundary import Folder, Json, command_line
from moray.tasks.language.encode import Encoder
from moray.tasks.language.preview import preview
from moray.tasks.language.recipe import make_encoder
from moray.tasks.language.rows import row_type
from moray.tasks.language.store import ROWS_FROM, TOKENIZER, SplitWriter
from moray.tasks.language.windows import encode_windows

_SHOWN = 3


def tokenize(dataset: Folder, model: Folder, output: Folder, cfg: Json) -> None:
    """Write the token store of a dataset's three splits, a preview, and its manifest last.

    Args:
        dataset: folder with the splits as Parquet.
        model: Hugging Face folder with the tokenizer, and a manifest that says whether the model
            isolates documents.
        output: folder to write to.
        cfg: format of the dataset, and the keys of the `data` section that tokens depend on.

    Raises:
        UserError: if packed documents would see each other, or if documents can't be encoded.
    """
    cfg = {**cfg, "packing": _packing(model, cfg["packing"])}
    with whole_or_nothing(output):
        encoder = make_encoder(model, cfg)
        facts = {split: _write(dataset, split, output, encoder, cfg) for split in SPLITS}
        if cfg["tokenize"] == "on-the-fly":
            _keep_source(dataset, model, output)
        record = row_type(encoder.block_size, encoder.dtype)
        write_manifest(
            output,
            task="language",
            record=describe(record),
            block_size=encoder.block_size,
            recipe=cfg,
            splits=facts,
        )
    train = facts["train"]
    padding = 1 - train["tokens"] / (train["rows"] * encoder.block_size)
    dropped = sum(counts["dropped_documents"] for counts in facts.values())
    say(
        f"tokens {output.name}: {train['tokens']:,} in {train['rows']:,} rows to train on, "
        f"{train['weight'] / train['tokens']:.0%} of them trained, {padding:.1%} padding"
        + (f", {dropped:,} documents longer than a row dropped" if dropped else "")
    )


def _packing(model: Path, packing: str | bool) -> bool:
    """Whether documents share rows; checks that the model allows it."""
    facts = read_manifest(model)
    isolated: bool = facts["isolates_documents"]
    if packing is True and not isolated:
        raise UserError(
            "data.packing",
            f"documents that share a row see each other in a model of type {facts['architecture']}",
            "set it to auto or false",
        )
    if packing == "auto" and not isolated:
        say(
            f"each row holds one document, because documents that share a row see each other in a "
            f"model of type {facts['architecture']}"
        )
    return isolated if packing == "auto" else bool(packing)


def _write(
    dataset: Path, split: str, output: Path, encoder: Encoder, cfg: dict[str, Any]
) -> dict[str, Any]:
    file = dataset / f"{split}.parquet"
    train = split == "train"
    groups = num_groups(file)
    # The first worker reads validation and test from here, even if train is streamed.
    keep = not train or cfg["tokenize"] == "ahead"
    with SplitWriter(output, split, encoder.block_size, keep) as writer:
        # Bytes are only needed for scoring.
        windows = encode_windows(file, encoder, cfg["packing"], count_bytes=not train)
        followed = progress(windows, f"tokenize {split}", "window", groups)
        for number, window in enumerate(followed):
            if keep and number == 0:
                check_space(output, round(window.rows.nbytes / share_of_group(file, 0)))
            if split == "test" and number == 0:
                # Without the store's name: equal stores have equal manifests.
                shown = preview(window, encoder.tokenizer, _SHOWN)
                (output / "preview.txt").write_text(f"test split\n{shown}", "utf-8")
            writer.add(window)
        facts = writer.facts()
    if split != "validation" and facts["weight"] == 0:
        raise UserError(
            str(file),
            "no tokens to train on after tokenising; documents dropped because they are too long: "
            f"{facts['dropped_documents']}",
            f"check the format ({cfg['format']}) and data.block_size ({encoder.block_size})",
        )
    return facts


def _keep_source(dataset: Path, model: Path, output: Path) -> None:
    """Put the source of its rows into the store; on the same disk, a hard link takes no space."""
    try:
        os.link(dataset / "train.parquet", output / ROWS_FROM)
    except OSError:
        shutil.copyfile(dataset / "train.parquet", output / ROWS_FROM)
    unneeded = shutil.ignore_patterns("*.safetensors", MANIFEST)
    shutil.copytree(model, output / TOKENIZER, ignore=unneeded)


if __name__ == "__main__":
    command_line(tokenize)
