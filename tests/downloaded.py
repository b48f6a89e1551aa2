"""Downloads of local files, as the workflow makes them."""

import json
from pathlib import Path
from typing import Any

from moray.corpus.dataset import SPLITS, read_documents
from moray.stages.download import download

SHARES = {"validation_share": 0.2, "test_share": 0.2}


def config(path: Any, **more: Any) -> dict[str, Any]:
    return {"source": "files", "path": path, **SHARES, **more}


def local(folder: Path, paths: list[Path], **more: Any) -> None:
    """Download local files, as the workflow does once it has found them."""
    names = [str(path) for path in paths]
    download(folder, config(names, **more), {"train": names})


def read(folder: Path, column: str = "text") -> dict[str, list[Any]]:
    return {
        split: [
            dict(row)[column]
            for rows in read_documents(folder / f"{split}.parquet")
            for row in rows
        ]
        for split in SPLITS
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
