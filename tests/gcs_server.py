"""As much of Google Cloud Storage's XML API as the package needs, on the loopback interface.

Generations and conditions are as in the API's reference; nothing is signed.
"""

import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
from web_server import web_server


@dataclass(frozen=True)
class _Object:
    content: bytes
    generation: int
    changed: datetime


@dataclass
class _Bucket:
    objects: dict[str, _Object] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    generations: Iterator[int] = field(default_factory=lambda: count(1))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: str, content: bytes, condition: str | None) -> _Object | None:
        """None if a condition on the generation isn't met; 0 stands for "there is none"."""
        with self.lock:
            before = self.objects.get(key)
            if condition is not None and int(condition) != (before.generation if before else 0):
                return None
            made = _Object(content, next(self.generations), datetime.now(UTC))
            self.objects[key] = made
            return made

    def listing(self, prefix: str, delimiter: str) -> str:
        entries, folders = [], set()
        for key, found in sorted(self.objects.items()):
            if not key.startswith(prefix):
                continue
            folder, cut, _ = (
                key.removeprefix(prefix).partition(delimiter) if delimiter else ("",) * 3
            )
            if cut:
                folders.add(prefix + folder + delimiter)
                continue
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(found.content)}</Size>"
                f"<LastModified>{found.changed:%Y-%m-%dT%H:%M:%S.%fZ}</LastModified>"
                f'<ETag>"{found.generation}"</ETag></Contents>'
            )
        common = (f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders)
        return f"<ListBucketResult>{''.join([*entries, *common])}</ListBucketResult>"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: _Bucket

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        key, query = self._asked()
        if not key:
            self._answer(
                200, self.bucket.listing(query.get("prefix", ""), query.get("delimiter", ""))
            )
        elif found := self.bucket.objects.get(key):
            self._answer(200, found.content, found)
        else:
            self._answer(404)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        key, query = self._asked()
        content = self._content()
        if "uploadId" in query:
            self.bucket.uploads[query["uploadId"]][int(query["partNumber"])] = content
            self._answer(200, headers={"ETag": f'"{query["partNumber"]}"'})
        elif made := self.bucket.put(key, content, self.headers.get("x-goog-if-generation-match")):
            self._answer(200, b"", made)
        else:
            self._answer(412)

    def do_POST(self) -> None:
        key, query = self._asked()
        content = self._content()
        if "uploads" in query:
            name = uuid.uuid4().hex
            self.bucket.uploads[name] = {}
            self._answer(200, f"<R><UploadId>{name}</UploadId></R>")
            return
        parts = self.bucket.uploads.pop(query["uploadId"])
        named = [int(number) for number in re.findall(rb"<PartNumber>(\d+)", content)]
        made = self.bucket.put(key, b"".join(parts[number] for number in named), None)
        self._answer(200, f'<R><ETag>"{named}"</ETag></R>', made)

    def do_DELETE(self) -> None:
        key, _ = self._asked()
        self._answer(204 if self.bucket.objects.pop(key, None) else 404)

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        return key, {name: values[0] for name, values in query.items()}

    def _content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(
        self,
        status: int,
        content: bytes | str = b"",
        of: _Object | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        content = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if of:
            self.send_header("ETag", f'"{of.generation}"')
            self.send_header("x-goog-generation", str(of.generation))
            self.send_header("Last-Modified", format_datetime(of.changed, usegmt=True))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def gcs_server(folder: Path) -> Iterator[str]:
    """The URL of a fresh bucket, which is reached by the environment set meanwhile.

    Args:
        folder: where to write the credentials.
    """
    handler = type("Handler", (_Handler,), {"bucket": _Bucket()})
    credentials = folder / "service-account.json"
    account = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    with web_server(handler) as url, pytest.MonkeyPatch.context() as patch:
        credentials.write_text(json.dumps({"gcs_base_url": url, "disable_oauth": True, **account}))
        patch.setenv("GOOGLE_SERVICE_ACCOUNT", str(credentials))
        patch.setenv("GOOGLE_ALLOW_HTTP", "true")
        yield f"gs://bucket-{uuid.uuid4().hex[:8]}"
