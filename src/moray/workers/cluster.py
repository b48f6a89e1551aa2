"""Where Ray is: on this machine for the time of a run, or a cluster that is there already."""

import ipaddress
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from moray.config.schema import Ray
from moray.console import say
from moray.errors import UserError

_LOCAL = "local"

# Weights don't travel through Ray's object store; the default would reserve a third of memory.
_OBJECT_STORE_BYTES = 128 * 2**20

_SECONDS_TO_ANSWER = 10

_ENVIRONMENT = {
    # The controller polls workers at this interval; a second each at start, end and report.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # Otherwise a worker's prints appear twice.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


# What a local Ray, which nobody drains, needn't start or do: each of Ray's own processes takes a
# second of a core to start, and a hundredth of one from then on.
_LOCAL_ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Processes started ahead, of which Ray Train takes none: its own have other variables.
    "RAY_prestart_worker_first_driver": "0",
}


def check_cores(settings: Ray, path: str) -> None:
    """Hold what local workers ask for against this machine, before anything is started.

    Raises:
        UserError: if they ask for more CPUs than there are.
    """
    if settings.address == _LOCAL:
        wanted = {"CPU": settings.resources_per_worker.get("CPU", 0)}
        _check(wanted, settings.num_workers, {"CPU": _cores()}, path, "this machine")


@contextmanager
def connected(settings: Ray, path: str, streams: bool = False) -> Iterator[bool]:
    """Connect to Ray for the body; a local Ray is started before and ended after it.

    Args:
        settings: the `ray` section of the config.
        path: of that section in the config, for errors.
        streams: whether Ray Data feeds the workers, for which its tasks need a CPU beside them.

    Yields:
        Whether workers get a GPU each.

    Raises:
        UserError: if the workers ask for more than there is, Ray's token can't be kept private, or
            no Ray is at the address.
    """
    check_cores(settings, path)
    os.environ.update(_ENVIRONMENT)
    if settings.address == _LOCAL:
        os.environ.update(_LOCAL_ENVIRONMENT)
    _check_authentication(settings, path)
    if settings.address == _LOCAL:
        _keep_token_private()
    import ray

    options: dict[str, Any] = {"log_to_driver": False}
    if settings.address == _LOCAL:
        # The workers may hold all cores: tasks then share them with the workers.
        options["num_cpus"] = _cores() + streams
        options["object_store_memory"] = _OBJECT_STORE_BYTES * (4 if streams else 1)
        options["include_dashboard"] = settings.include_dashboard
    with _answering(settings, path):
        context = ray.init(address=settings.address, **options)
    if options.get("include_dashboard"):
        say(f"Ray's dashboard is at http://{context.dashboard_url}")
    try:
        there = ray.cluster_resources()
        wanted = {"GPU": 1.0} | settings.resources_per_worker
        enough = there.get("GPU", 0) >= settings.num_workers * wanted["GPU"]
        use_gpu = enough if settings.use_gpu == "auto" else settings.use_gpu
        if not use_gpu:
            wanted = dict(settings.resources_per_worker)
        _check(wanted, settings.num_workers, there, path, "the cluster", streams)
        yield use_gpu
    finally:
        ray.shutdown()


def _check(
    wanted: Mapping[str, float],
    workers: int,
    there: Mapping[str, float],
    path: str,
    where: str,
    streams: bool = False,
) -> None:
    for resource, share in wanted.items():
        available = there.get(resource, 0)
        if streams and resource == "CPU" and workers * share + 1 > available >= workers * share:
            raise UserError(
                f"{path}.num_workers",
                f"got {workers} workers of {share:g} CPU each with data.loader: stream, expected "
                f"one CPU beside them for reading, of the {available:g} that {where} has",
                "lower num_workers or resources_per_worker.CPU",
            )
        if workers * share > available:
            raise UserError(
                f"{path}.num_workers",
                f"got {workers} workers of {share:g} {resource} each, "
                f"expected at most {available:g} {resource} in all, which is what {where} has",
                f"lower num_workers or resources_per_worker.{resource}",
            )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_authentication(settings: Ray, path: str) -> None:
    """Refuse a cluster that anyone on the network could send code to."""
    if settings.endpoint is None or os.environ.get("RAY_AUTH_MODE") == "token":
        return
    address = settings.address
    try:
        # A name can stand for several, of which Ray takes one.
        hosts = {str(address[0]) for *_, address in socket.getaddrinfo(*settings.endpoint)}
    except OSError as error:
        raise UserError(
            f"{path}.address", f"got {address}, which names no known host", "check the address"
        ) from error
    if not all(ipaddress.ip_address(host).is_loopback for host in hosts):
        raise UserError(
            f"{path}.address",
            f"got {address}, a cluster beyond this machine, without RAY_AUTH_MODE=token",
            "start the cluster with token authentication and set that variable here",
        )


@contextmanager
def _answering(settings: Ray, path: str) -> Iterator[None]:
    """Say in one line that no Ray is at the address; Ray itself would try for minutes."""
    try:
        if settings.endpoint:
            _knock(settings.endpoint)
        yield
    except ConnectionError as error:
        if settings.address == _LOCAL:
            raise
        raise UserError(
            f"{path}.address",
            f"got {settings.address}, where no Ray answers",
            "start one there with `ray start --head`, or set it to local",
        ) from error


def _knock(endpoint: tuple[str, int]) -> None:
    try:
        socket.create_connection(endpoint, timeout=_SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise ConnectionError(*endpoint) from error


def _keep_token_private() -> None:
    """Have the token that lets others send code to a local Ray where only its user reads it.

    Ray writes it to the home folder as any file, which often all users of the machine may read.
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
            f"got no place for a token that only you can read ({error.strerror})",
            "make the file yours and its folder writable, or set RAY_AUTH_TOKEN",
        ) from error


def _write_token(path: Path) -> None:
    # Whole or not at all, because other runs start at the same time; theirs stays.
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as file, suppress(FileExistsError):
        file.write(secrets.token_hex(32))
        file.flush()
        os.link(file.name, path)
