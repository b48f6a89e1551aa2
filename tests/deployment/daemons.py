"""What tests that start daemons share."""

import socket
import time
from collections.abc import Callable

_SECONDS = 900


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process does; at most a quarter of an hour."""
    end = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.5)


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nothing listens on."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
