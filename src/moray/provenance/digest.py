"""Digests of files and of settings."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def sha256_file(path: Path) -> str:
    """The hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(settings: Any, digests: Sequence[str]) -> str:
    """A digest of settings and of the digests of files, 16 hexadecimal digits."""
    whole = [settings, list(digests)]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
