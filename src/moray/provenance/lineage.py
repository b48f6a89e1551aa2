"""What a result was made from: the digests of its inputs, recorded with it."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moray.provenance.digest import sha256_file
from moray.provenance.manifest import write_json

LINEAGE = "lineage.json"
_SEAL = "sha256"


def write_sealed(path: Path, value: dict[str, Any], inputs: Iterable[Path]) -> None:
    """Write a JSON file with the digests of its inputs, and one of its own content.

    Args:
        path: the file.
        value: its content; `inputs` and `sha256` are added.
        inputs: files that the content was computed from, such as manifests.
    """
    whole = {**value, "inputs": {str(file): sha256_file(file) for file in inputs}}
    write_json(path, {**whole, _SEAL: _digest(whole)})


def is_sealed(value: dict[str, Any]) -> bool:
    """Whether the content of a file is what `write_sealed` wrote."""
    return value.get(_SEAL) == _digest({key: value[key] for key in value if key != _SEAL})


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
