"""What the stages that write token stores have in common."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from moray.console import progress, say
from moray.corpus.dataset import num_groups, share_of_group
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.provenance.space import check_space
from moray.tasks.language.preview import preview
from moray.tasks.language.store import SplitWriter
from moray.tasks.language.windows import EncodeWindow, encode_windows

_SHOWN = 3


def choose_packing(model: Path, packing: str | bool) -> bool:
    """Whether documents share rows; checks that the model allows it.

    Args:
        model: folder whose manifest says whether the model isolates documents.
        packing: `data.packing`.

    Raises:
        UserError: if packed documents would see each other.
    """
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


def write_split(
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


def check_trained(facts: dict[str, Any], file: Path, cfg: dict[str, Any]) -> None:
    """Check that a split has tokens to train on.

    Raises:
        UserError: if it has none.
    """
    if facts["weight"] == 0:
        raise UserError(
            str(file),
            "no tokens to train on after tokenising; documents dropped because they are too long: "
            f"{facts['dropped_documents']}",
            f"check the format ({cfg['format']}) and data.block_size ({cfg['block_size']})",
        )
