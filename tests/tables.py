"""Tables as files of each type that is read."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BOM = "\N{BYTE ORDER MARK}"


def pack(path: Path, content: bytes) -> Path:
    """Write a file, compressed by something else than what reads it where that is there."""
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".zst":
        content = pa.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(content)
    return path


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write a table as a file of the type that its name says."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    kind = path.suffixes[0]
    if kind == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    if kind == ".json":
        content = json.dumps(rows, indent=1)
    elif kind in (".jsonl", ".ndjson"):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        quoted = ((f'"{v.replace(chr(34), chr(34) * 2)}"' for v in row.values()) for row in rows)
        between = "\t" if kind == ".tsv" else ","
        content = "".join(f"{between.join(line)}\n" for line in (columns, *quoted))
    return pack(path, content.encode())
