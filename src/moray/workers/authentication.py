"""Ray's token: no cluster that anyone can send code to, no token that anyone can read."""

import ipaddress
import os
import secrets
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from moray.config.schema.sections import Ray
from moray.errors import UserError


def check_authentication(settings: Ray, path: str) -> None:
    """Refuse a cluster to which anyone on the network could send code.

    Raises:
        UserError: if it is outside of this machine and this process uses no token.
    """
    if settings.endpoint is None or os.environ.get("RAY_AUTH_MODE") == "token":
        return
    address = settings.address
    try:
        # A name can have several addresses, and Ray uses one of them.
        hosts = {str(address[0]) for *_, address in socket.getaddrinfo(*settings.endpoint)}
    except OSError as error:
        raise UserError(
            f"{path}.address", f"got {address}, whose host is unknown", "check the address"
        ) from error
    if not all(ipaddress.ip_address(host).is_loopback for host in hosts):
        raise UserError(
            f"{path}.address",
            f"got {address}, a cluster outside this machine, without RAY_AUTH_MODE=token",
            "start the cluster with token authentication and set this variable here",
        )


def keep_token_private() -> None:
    """Make sure that only this user can read the token with which to send code to a local Ray.

    Ray writes it to the home folder with default permissions, with which all users of the machine
    can often read it.

    Raises:
        UserError: if the token can't be written.
    """
    given = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if given or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    token = Path.home() / ".ray" / "auth_token"
    try:
        if not token.exists():
            token.parent.mkdir(parents=True, exist_ok=True)
            _write_token(token)
        if (mode := token.stat().st_mode) & 0o077:
            token.chmod(mode & 0o700)
    except OSError as error:
        raise UserError(
            str(token),
            f"can't write a token that only you can read ({error.strerror})",
            "make sure that you own the file and can write to its folder, or set RAY_AUTH_TOKEN",
        ) from error


def _write_token(path: Path) -> None:
    # Written atomically, because other runs may start at the same time; an existing token is kept.
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as file, suppress(FileExistsError):
        file.write(secrets.token_hex(32))
        file.flush()
        os.link(file.name, path)
