"""Digests of files and of settings."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(settings: Any, files: Iterable[Path]) -> str:
    """One digest of settings and of the contents of files, hexadecimal, 16 digits.

    The files' names don't count, their order does.
    """
    whole = [settings, [sha256_file(path) for path in files]]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
