"""Traps: what shows that something was run, or written where it doesn't belong."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from web_server import web_server


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._canary,)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that is there once something was run."""
    return tmp_path / "canary"


@pytest.fixture
def trap(canary: Path) -> Trap:
    """What is run when it is unpickled."""
    return Trap(canary)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where a stage may write, a few folders below the test's own."""
    folder = tmp_path / "a/b/c/output"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path, output: Path) -> Callable[[], set[str]]:
    """All that lies in the test's folder but not where a stage may write."""

    def listed() -> set[str]:
        return {str(path) for path in tmp_path.rglob("*") if not path.is_relative_to(output)}

    return listed


ROWS = "".join(f'{{"text": "text {number}"}}\n' for number in range(40)).encode()


class Web(BaseHTTPRequestHandler):
    """Serves the same rows under every name, and proposes another name for them."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(ROWS)))
        self.send_header("Content-Disposition", 'attachment; filename="../../proposed.jsonl"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(ROWS)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    """The address of a web server that has rows under every name."""
    with web_server(Web) as url:
        yield url
