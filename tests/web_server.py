"""Web servers of one's own, on the loopback interface."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Files(SimpleHTTPRequestHandler):
    """Serves the files of a folder, without writing to standard error."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def web_server(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server that handles requests so."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
