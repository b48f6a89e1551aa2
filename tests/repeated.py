"""Datasets of rows that are there twice, or nearly."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from moray.stages.download import download

WORDS = [f"w{number}" for number in range(400)]


def split_of_rows(folder: Path, **keys: Any) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """A dataset of the folder's rows; returns the texts of each split, and its description."""
    file = str(folder / "rows.jsonl")
    section = {"source": "files", "path": file, "validation_share": 0.2, "test_share": 0.2, **keys}
    output = folder / keys.get("deduplicate", "plain")
    download(output, section, {"train": [file]})
    described = json.loads((output / "dataset.json").read_text())
    tables = {split: pq.read_table(output / f"{split}.parquet") for split in described["splits"]}
    return {split: table["text"].to_pylist() for split, table in tables.items()}, described


def write_repeated(folder: Path) -> list[str]:
    """Write two hundred texts, each also without its last word, and half of them twice."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=100)) for _ in range(200)]
    rows = [*texts, *(text.rpartition(" ")[0] for text in texts), *texts[:100]]
    draw.shuffle(rows)
    lines = (json.dumps({"text": row}) for row in rows)
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return rows
