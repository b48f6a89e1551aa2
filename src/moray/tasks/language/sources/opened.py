"""The content of files, compressed or not, in any encoding."""

import codecs
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from moray.errors import UserError

# The names in pyarrow of the compressions, by the ending of files.
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_BYTES_AT_ONCE = 2**16


@dataclass(frozen=True)
class Form:
    """How a file is written, besides its type.

    Attributes:
        delimiter: what separates the values of CSV and TSV; None for what its type says.
        encoding: that of its text, by Python's name.
    """

    delimiter: str | None = None
    encoding: str = "utf-8"


def kind_of(file: Path) -> str:
    """The ending of a file, without that of its compression."""
    return (Path(file.stem).suffix if is_compressed(file) else file.suffix).lower()


def is_compressed(file: Path) -> bool:
    """Whether the ending of a file is that of a compression."""
    return file.suffix.lower() in _COMPRESSED


@contextmanager
def open_file(
    file: Path, encoding: str = "utf-8"
) -> Iterator[tuple[io.BufferedReader, Callable[[], int]]]:
    """The content of a file in UTF-8, and a function that tells how many of its bytes were read.

    Raises:
        UserError: while it is read, if it isn't in this encoding. UTF-8 is left to `decode`.
    """
    with pa.OSFile(str(file)) as raw:
        compression = _COMPRESSED.get(file.suffix.lower())
        content = pa.CompressedInputStream(raw, compression) if compression else raw
        is_converted = codecs.lookup(encoding).name != "utf-8"
        if is_converted:
            content = _InUtf8(file, content, encoding)
        with io.BufferedReader(content) as stream:
            # The stream reads ahead, and can't tell where a compressed file is.
            yield stream, raw.tell if compression or is_converted else stream.tell


class _InUtf8(io.RawIOBase):
    """The content of a file in another encoding."""

    def __init__(self, file: Path, content: Any, encoding: str) -> None:
        self._file, self._content, self._encoding = file, content, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._num_read, self._is_read = 0, False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._is_read:
            self._ready = self._next().encode()
        part, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def _next(self) -> str:
        part = self._content.read(_BYTES_AT_ONCE)
        self._is_read = not part
        # Of a character that isn't whole yet.
        waiting, _ = self._decoder.getstate()
        try:
            text = self._decoder.decode(part, final=self._is_read)
        except UnicodeDecodeError as error:
            raise UserError(
                str(self._file),
                f"invalid {self._encoding} at byte {self._num_read - len(waiting) + error.start}",
                "set encoding to that of the file, or convert it to UTF-8",
            ) from error
        self._num_read += len(part)
        return text


def lines(file: Path, stream: BinaryIO | io.BufferedReader, offset: int = 0) -> Iterator[str]:
    """The lines of a file from an offset on, with their ends.

    Raises:
        UserError: if they aren't UTF-8.
    """
    for line in stream:
        yield decode(file, line, offset)
        offset += len(line)


def decode(file: Path, content: bytes, offset: int) -> str:
    """A part of a file, which begins at an offset.

    Raises:
        UserError: if it isn't UTF-8.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        is_utf_16 = offset == 0 and content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        advice = (
            "set encoding: utf-16"
            if is_utf_16
            else "set encoding to that of the file, such as cp1252 (Windows)"
        )
        raise UserError(
            str(file),
            f"invalid UTF-8 at byte {offset + error.start}",
            f"{advice}, or convert the file to UTF-8",
        ) from error
    # Spreadsheets write a byte order mark at the start.
    return text.removeprefix("\N{BYTE ORDER MARK}") if offset == 0 else text
