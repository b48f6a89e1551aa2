"""The token store of a dataset: how its splits are tokenised and written."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from moray.console import progress
from moray.corpus.dataset import num_groups, share_of_group
from moray.provenance.space import check_space
from moray.tasks.language.encode import Encoder
from moray.tasks.language.preview import preview
from moray.tasks.language.store import SplitWriter
from moray.tasks.language.windows import EncodeWindow, encode_window, encode_windows

_SHOWN = 3


def write_split(file: Path, store: Path, encoder: Encoder, cfg: dict[str, Any]) -> dict[str, Any]:
    """Tokenise a split into a store; see `TokensModule`."""
    split, train = file.stem, file.stem == "train"
    # The first worker reads validation and test from here, even if train is streamed.
    keep = not train or cfg["tokenize"] == "ahead"
    # Bytes are only needed for scoring.
    encode = partial(encode_window, encoder=encoder, packing=cfg["packing"], count_bytes=not train)
    shown = (store / "preview.txt", encoder.tokenizer, ("document",))
    with SplitWriter(store, split, encoder.block_size, keep) as writer:
        write_windows(writer, file, encode, keep, shown if split == "test" else None)
        return writer.facts()


def summary(facts: dict[str, dict[str, Any]], block_size: int) -> str:
    """What a store holds, in words; see `TokensModule`."""
    train = facts["train"]
    padding = 1 - train["tokens"] / (train["rows"] * block_size)
    dropped = sum(counts["dropped_documents"] for counts in facts.values())
    return (
        f"{train['tokens']:,} in {train['rows']:,} rows to train on, "
        f"{train['weight'] / train['tokens']:.0%} of them trained, {padding:.1%} padding"
        + (f", {dropped:,} documents longer than a row dropped" if dropped else "")
    )


def write_windows(
    writer: SplitWriter,
    file: Path,
    encode: EncodeWindow,
    keep: bool,
    shown: tuple[Path, PreTrainedTokenizerFast, tuple[str, ...]] | None,
) -> None:
    """Tokenise a split into a writer.

    Args:
        writer: of an open split.
        file: the split as Parquet.
        encode: tokenises and packs a window.
        keep: whether the writer stores the rows.
        shown: file for the preview of the first documents, the tokenizer, and what the pieces of a
            document are called; None for no preview.

    Raises:
        UserError: if documents can't be encoded.
    """
    windows = encode_windows(file, encode)
    followed = progress(windows, f"tokenize {file.stem}", "window", num_groups(file))
    for number, window in enumerate(followed):
        if keep and number == 0:
            check_space(writer.folder, round(window.rows.nbytes / share_of_group(file, 0)))
        if shown and number == 0:
            path, tokenizer, names = shown
            # Without the store's name: equal stores have equal manifests.
            text = preview(window, tokenizer, _SHOWN, names)
            path.write_text(f"{file.stem} split\n{text}", "utf-8")
        writer.add(window)
