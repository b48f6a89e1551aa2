"""Write a dataset of documents that a program makes, such as a benchmark."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moray.config.tasks import FormatName
from moray.corpus.dataset import SPLITS, Document
from moray.corpus.staging import Fact, Staging, numbers
from moray.corpus.writer import DatasetWriter, describe

_AT_ONCE = 500


def write_dataset(
    folder: Path,
    rows: Iterable[tuple[str, Document]],
    format: FormatName,
    origin: dict[str, Any],
    keep_groups: bool = True,
) -> dict[str, Any]:
    """Write each document to the file of its split; returns the description in `dataset.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    staging = Staging(format, keep_groups, 0.0, 0.0)
    writer = DatasetWriter(folder, format, keep_groups)
    waiting: dict[str, list[Document]] = {split: [] for split in SPLITS}

    def write(split: str) -> None:
        table = staging.table(split, waiting[split])
        writer.add(split, table, numbers(table, Fact.BYTES))
        waiting[split].clear()

    for split, document in rows:
        waiting[split].append(document)
        if len(waiting[split]) == _AT_ONCE:
            write(split)
    for split in SPLITS:
        write(split)
    return describe(folder, format, writer.close(), origin)
