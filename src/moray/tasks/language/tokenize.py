"""Tokenise a dataset once, into the packed store that training and evaluation read."""

import os
import shutil
from itertools import chain, islice
from pathlib import Path
from typing import Any

from moray.config.schema.base import Proofs
from moray.config.schema.datasets import LocalFiles
from moray.config.tasks import FORMATS, module_of
from moray.console import say
from moray.corpus.dataset import SPLITS, read_documents
from moray.errors import UserError
from moray.proofs.comparison import collect, conclude, write_proof
from moray.provenance.manifest import MANIFEST, read_manifest, write_manifest
from moray.rows.store import describe
from moray.stages.store import open_store
from moray.tasks.language.encode import RefusedRowError, make_encoder
from moray.tasks.language.rows import ROWS_FROM, TOKENIZER, row_type
from moray.tasks.language.sources.files import place_of


def tokenize(
    dataset: Path,
    model: Path,
    output: Path,
    cfg: dict[str, Any],
    source: dict[str, Any] | None = None,
    files: dict[str, list[str]] | None = None,
    proofs: Proofs = "refuse",
    code: str = "",
    execution: dict[str, Any] | None = None,
) -> None:
    """Write the token store of a dataset's three splits, a preview, and its manifest.

    A store of the same rows, model, settings and code that a killed process has begun is continued.

    Args:
        model: Hugging Face folder with the tokenizer, and a manifest that says whether the model
            isolates documents.
        cfg: format of the dataset, and the keys of the `data` section that tokens depend on.
        source: the dataset's section of the config, for errors.
        files: the user's files that it was read from, by split, for errors.
        proofs: what follows if the tokenizer by itself makes other tokens.
        code, execution: as of `open_store`.

    Raises:
        UserError: if packed documents would attend to each other, or if documents can't be encoded.
    """
    cfg = {**cfg, "packing": _choose_packing(model, cfg["packing"])}
    task = FORMATS[cfg["format"]].task
    tokens = module_of(task, "tokens")
    with open_store(dataset, model, output, cfg, code, execution) as store:
        encoder = make_encoder(model, cfg)
        facts = {}
        for split in SPLITS:
            file = dataset / f"{split}.parquet"
            try:
                facts[split] = tokens.write_split(file, store, encoder, cfg)
            except RefusedRowError as error:
                place = _place(file, error.number, source, files) if source and files else None
                raise UserError(
                    place or f"datasets.{dataset.name}", error.problem, error.remedy
                ) from error
            if split != "validation":
                _check_trained(facts[split], file, cfg)
        if cfg["tokenize"] == "on-the-fly":
            _keep_source(dataset, model, output)
        write_manifest(
            output,
            task=task,
            record=describe(row_type(encoder.block_size, encoder.dtype)),
            block_size=encoder.block_size,
            recipe=cfg,
            splits=facts,
        )
        if proofs != "off":
            comparisons = collect("tokens", lambda: tokens.compare(dataset, model, output, cfg))
            proof = conclude(comparisons, proofs, f"datasets.{dataset.name}")
            write_proof(output, proof, [output / MANIFEST])
    say(f"tokens {output.name}: {tokens.summary(facts, encoder.block_size)}")
    if "prompt" in facts["train"].get("roles", {}) and encoder.tokenizer.chat_template:
        say(
            f"datasets.{dataset.name}: prompts and answers are text, so the model's chat template "
            "isn't used; write them as messages to use it"
        )
    for line in tokens.warnings(facts, f"datasets.{dataset.name}"):
        say(line)


def _choose_packing(model: Path, packing: str | bool) -> bool:
    """Whether documents share rows; checks that the model allows it."""
    facts = read_manifest(model)
    isolated: bool = facts["isolates_documents"]
    if packing is True and not isolated:
        raise UserError(
            "data.packing",
            f"packed documents would attend to each other in {facts['architecture']}",
            "set it to auto or false",
        )
    if packing == "auto" and not isolated:
        say(
            "each row holds one document, because packed documents would attend to each other in "
            f"{facts['architecture']}"
        )
    return isolated if packing == "auto" else bool(packing)


def _place(
    file: Path, number: int, source: dict[str, Any], files: dict[str, list[str]]
) -> str | None:
    """The place of a row in the user's files; None if they no longer have it."""
    rows = chain.from_iterable(read_documents(file))
    section = LocalFiles.model_validate(source)
    return place_of(next(islice(rows, number - 1, None)), section, files)


def _check_trained(facts: dict[str, Any], file: Path, cfg: dict[str, Any]) -> None:
    """Refuse a split that has no tokens to train on."""
    if facts["weight"] == 0:
        raise UserError(
            f"datasets.{file.parent.name}",
            f"the {file.stem} split has no tokens to train on after tokenising; documents dropped "
            f"because they are too long: {facts['dropped_documents']}",
            f"check the format ({cfg['format']}) and data.block_size ({cfg['block_size']})",
        )


def _keep_source(dataset: Path, model: Path, output: Path) -> None:
    """Put the source of its rows into the store; on the same disk, a hard link takes no space."""
    (output / ROWS_FROM).unlink(missing_ok=True)
    try:
        os.link(dataset / "train.parquet", output / ROWS_FROM)
    except OSError:
        shutil.copyfile(dataset / "train.parquet", output / ROWS_FROM)
    unneeded = shutil.ignore_patterns("*.safetensors", MANIFEST)
    shutil.copytree(model, output / TOKENIZER, ignore=unneeded, dirs_exist_ok=True)
