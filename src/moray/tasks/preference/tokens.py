"""The token store of a preference dataset: how its splits are tokenised and written."""

from functools import partial
from pathlib import Path
from typing import Any

from moray.tasks.language.encode import Encoder
from moray.tasks.language.tokens import write_windows
from moray.tasks.preference.store import PairsWriter
from moray.tasks.preference.windows import encode_window


def write_split(file: Path, store: Path, encoder: Encoder, cfg: dict[str, Any]) -> dict[str, Any]:
    """Tokenise a split into a store; see `TokensModule`."""
    encode = partial(
        encode_window,
        encoder=encoder,
        drop_long=cfg["long_documents"] == "drop",
        packing=cfg["packing"],
        # Bytes are only needed for scoring.
        count_bytes=file.stem == "test",
    )
    shown = (store / "preview.txt", encoder.tokenizer, ("chosen", "rejected"))
    with PairsWriter(store, file.stem, encoder.block_size) as writer:
        write_windows(writer, file, encode, True, shown if file.stem == "test" else None)
        return writer.facts()


def summary(facts: dict[str, dict[str, Any]], block_size: int) -> str:
    """What a store holds, in words; see `TokensModule`."""
    train = facts["train"]
    padding = 1 - train["tokens"] / (train["rows"] * block_size)
    dropped, truncated = (
        sum(counts[name] for counts in facts.values())
        for name in ("dropped_documents", "truncated_pairs")
    )
    return (
        f"{train['pairs']:,} pairs in {train['rows']:,} rows to train on, {padding:.1%} padding"
        + (f", {dropped:,} pairs dropped" if dropped else "")
        + (f", {truncated:,} pairs truncated" if truncated else "")
    )
