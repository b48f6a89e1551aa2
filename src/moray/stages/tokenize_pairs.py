"""Tokenise a preference dataset once, into the packed store of its pairs."""

from functools import partial
from pathlib import Path
from typing import Any

from moray.console import say
from moray.corpus.dataset import SPLITS
from moray.provenance.manifest import whole_or_nothing, write_manifest
from moray.rows.store import describe
from moray.stages.boundary import Folder, Json, command_line
from moray.stages.tokens import check_trained, choose_packing, write_split
from moray.tasks.language.encode import Encoder
from moray.tasks.language.recipe import make_encoder
from moray.tasks.language.rows import row_type
from moray.tasks.preference.store import PairsWriter
from moray.tasks.preference.windows import encode_window


def tokenize_pairs(dataset: Folder, model: Folder, output: Folder, cfg: Json) -> None:
    """Write the token store of a dataset's three splits, a preview, and its manifest last.

    Args:
        dataset: folder with the splits as Parquet.
        model: Hugging Face folder with the tokenizer, and a manifest that says whether the model
            isolates documents.
        output: folder to write to.
        cfg: format of the dataset, and the keys of the `data` section that tokens depend on.

    Raises:
        UserError: if packed pairs would see each other, or if pairs can't be encoded.
    """
    cfg = {**cfg, "packing": choose_packing(model, cfg["packing"])}
    with whole_or_nothing(output):
        encoder = make_encoder(model, cfg)
        facts = {split: _write(dataset, split, output, encoder, cfg) for split in SPLITS}
        write_manifest(
            output,
            task="preference",
            record=describe(row_type(encoder.block_size, encoder.dtype)),
            block_size=encoder.block_size,
            recipe=cfg,
            splits=facts,
        )
    train = facts["train"]
    padding = 1 - train["tokens"] / (train["rows"] * encoder.block_size)
    dropped, truncated = (
        sum(counts[name] for counts in facts.values())
        for name in ("dropped_documents", "truncated_pairs")
    )
    say(
        f"tokens {output.name}: {train['pairs']:,} pairs in {train['rows']:,} rows to train on, "
        f"{padding:.1%} padding"
        + (f", {dropped:,} pairs dropped" if dropped else "")
        + (f", {truncated:,} pairs truncated" if truncated else "")
    )


def _write(
    dataset: Path, split: str, output: Path, encoder: Encoder, cfg: dict[str, Any]
) -> dict[str, Any]:
    file = dataset / f"{split}.parquet"
    encode = partial(
        encode_window,
        encoder=encoder,
        drop_long=cfg["long_documents"] == "drop",
        packing=cfg["packing"],
        # Bytes are only needed for scoring.
        count_bytes=split == "test",
    )
    shown = (output / "preview.txt", encoder.tokenizer, ("chosen", "rejected"))
    with PairsWriter(output, split, encoder.block_size) as writer:
        write_split(writer, file, encode, True, shown if split == "test" else None)
        facts = writer.facts()
    if split != "validation":
        check_trained(facts, file, cfg)
    return facts


if __name__ == "__main__":
    command_line(tokenize_pairs)
