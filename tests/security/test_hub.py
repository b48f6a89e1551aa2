"""A hub that names files outside of its repository."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from web_server import web_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import sys
from moray.errors import UserError
from moray.model.obtain import download_snapshot
try: print(download_snapshot("owner/name", sys.argv[1]))
except UserError as error: sys.exit(str(error))
"""


class Hub(BaseHTTPRequestHandler):
    """Has one repository, whose only file has any name."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name = name
        super().__init__(*arguments)

    def do_GET(self) -> None:
        content = b"{}"
        if self.path.startswith("/api/models/"):
            entry = {"type": "file", "path": self.name, "size": 2, "oid": "0" * 40}
            content = json.dumps([entry]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def download(output: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Take the repository's commit, whose file has a name, into a cache of the test's own."""

    def taken(name: str) -> subprocess.CompletedProcess[str]:
        with web_server(partial(Hub, name)) as url:
            hub = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(output / "hub")}
            return subprocess.run(
                [sys.executable, "-c", SCRIPT, COMMIT],
                env=os.environ | hub,
                capture_output=True,
                text=True,
                check=False,
            )

    return taken


def test_a_file_of_a_plain_name_comes(
    download: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = download("config.json")
    assert Path(done.stdout.strip(), "config.json").read_text() == "{}", done.stderr


@pytest.mark.parametrize("name", ["../../../../../escaped.json", "..\\..\\escaped.json", "{root}"])
def test_a_name_that_leads_out_of_the_repository_is_refused(
    name: str,
    download: Callable[[str], subprocess.CompletedProcess[str]],
    tmp_path: Path,
    elsewhere: Callable[[], set[str]],
) -> None:
    before = elsewhere()
    done = download(name.format(root=tmp_path / "escaped.json"))
    (line,) = (line for line in done.stderr.splitlines() if "the repository" in line)
    assert line.startswith("owner/name: the repository can't be copied (Invalid filename ")
    assert line == done.stderr.splitlines()[-1]
    assert elsewhere() == before
