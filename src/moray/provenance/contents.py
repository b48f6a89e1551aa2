"""The user's files by their content: digests, which are kept while a file looks the same.

Times say nothing about content: `touch`, `git checkout` and another mount change them, and `cp -p`,
`rsync -a`, `tar` and `mv` bring other bytes with an old one.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from moray.console import say
from moray.provenance.manifest import write_bytes

# Larger files count by their size and by samples.
WHOLE_BYTES = 10**9
_SAMPLES, _SAMPLE_BYTES = 64, 2**20
# Reading so much takes seconds, so it is announced.
_ANNOUNCED_BYTES = 2 * 10**9
# The looks of files when they were read, and their digests. Named by the version of its format.
_CACHE = Path(".snakemake/moray-contents-1")
# A file that changed so shortly before it was read may change again without looking different:
# times of some file systems have steps of two seconds.
_UNSETTLED_NS = 2_500_000_000
# Stands for the digest of a file that can't be read, which the rule or its stage reports.
_UNREADABLE = "unreadable"

Cache = dict[str, tuple[list[int], str]]
"""The look of each file, and the digest of its content."""


def contents_of(files: Iterable[str], keep: bool = True) -> dict[str, str]:
    """A digest of the content of each file, by its path.

    Args:
        keep: whether to write new digests to a file for the next process.
    """
    entries = _read_cache(_CACHE.absolute())
    looks = {file: _look(file) for file in files}
    unknown = [
        file for file, look in looks.items() if look and entries.get(file, ([], ""))[0] != look
    ]
    if not unknown:
        return {file: entries[file][1] if look else _UNREADABLE for file, look in looks.items()}
    if sum(min(looks[file][0], WHOLE_BYTES) for file in unknown) > _ANNOUNCED_BYTES:
        say(f"reading {len(unknown):,} source files, which count by their content")
    began = time.time_ns()
    with ThreadPoolExecutor() as pool:
        read = dict(zip(unknown, pool.map(_digest, unknown), strict=True))
    new_entries: Cache = {
        file: (look, read[file])
        for file in unknown
        if (look := looks[file]) == _look(file) and began - look[2] > _UNSETTLED_NS
    }
    entries |= new_entries
    if keep and new_entries and _CACHE.parent.is_dir():
        _write_cache(new_entries)
    return {
        file: read[file] if file in read else entries[file][1] if look else _UNREADABLE
        for file, look in looks.items()
    }


def _look(file: str) -> list[int]:
    """The look of a file, by which changes are noticed; empty if it doesn't exist."""
    try:
        facts = os.stat(file)
    except OSError:
        return []
    # Unlike the first time, nothing sets the second one back.
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]


def _digest(file: str) -> str:
    """Digest of a file's content, 16 hexadecimal digits; of a large file's size and samples."""
    try:
        size = os.path.getsize(file)
        with open(file, "rb") as stream:
            if size <= WHOLE_BYTES:
                return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
            digest = hashlib.sha256(f"{size}\n".encode())
            for number in range(_SAMPLES):
                stream.seek((size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
            return digest.hexdigest()[:16]
    except OSError:
        return _UNREADABLE


@cache
def _read_cache(cache_file: Path) -> Cache:
    """The digests that were kept; none if the file is damaged, so that all are read again."""
    if not cache_file.is_file():
        return {}
    seal, _, content = cache_file.read_bytes().partition(b"\n")
    if seal.decode(errors="replace") != hashlib.sha256(content).hexdigest():
        return {}
    entries = json.loads(content).items()
    return {file: (look, digest) for file, (look, digest) in entries}


def _write_cache(new_entries: Cache) -> None:
    """Add digests to those that are kept, unless their files are gone."""
    # Another workflow may have added some.
    entries = _read_cache.__wrapped__(_CACHE) | new_entries
    there = {file: entry for file, entry in entries.items() if os.path.lexists(file)}
    content = json.dumps(there).encode()
    write_bytes(_CACHE, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
