"""Connect to Ray: a local Ray started for the run, or an existing cluster."""

import ipaddress
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from moray import machine
from moray.config.layout import Layout, check_gpus, lay_out, lay_out_here
from moray.config.schema import Ray
from moray.console import say
from moray.errors import UserError
from moray.workers.launch import Launch, on_this_machine

_LOCAL = "local"

# Weights don't go through Ray's object store; by default, it would reserve a third of memory.
_OBJECT_STORE_BYTES = 128 * 2**20

_SECONDS_TO_ANSWER = 10

_ENVIRONMENT = {
    # The interval at which the controller polls workers. The default adds a second to each start,
    # end and report.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # Otherwise, the output of workers appears twice.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


# Features that a local Ray doesn't need, because it is never drained. Each of Ray's own processes
# takes a second of CPU time to start, and 1 % of a core from then on.
_LOCAL_ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Prestarted workers, which Ray Train can't use because its workers set other variables.
    "RAY_prestart_worker_first_driver": "0",
}


def check_cores(settings: Ray, path: str, batch_size: int | None = None) -> None:
    """Check that this machine has the CPUs that local workers need.

    Raises:
        UserError: if it hasn't.
    """
    if settings.address == _LOCAL:
        layout = lay_out_here(settings, batch_size)
        wanted = {"CPU": settings.resources_per_worker.get("CPU", 0)}
        _check(wanted, layout.num_workers, {"CPU": machine.cores()}, path, "this machine")


@contextmanager
def connected(launch: Launch) -> Iterator[Layout]:
    """Connect to Ray for the body; a local Ray is started before it and stopped after it.

    Yields:
        The number of workers, and whether each gets a GPU.

    Raises:
        UserError: if there are too few resources for the workers, Ray's token can't be kept
            private, or no Ray answers at the address.
    """
    settings, path = launch.ray, launch.path
    check_cores(settings, path, launch.batch_size)
    os.environ.update(_ENVIRONMENT)
    _check_authentication(settings, path)
    if settings.address == _LOCAL:
        os.environ.update(_LOCAL_ENVIRONMENT)
        _keep_token_private()
        with on_this_machine(launch) as layout, _local_ray(launch, layout):
            _check_resources(launch, layout, "this machine")
            yield layout
    else:
        with _cluster(launch):
            there = _ray_resources()
            layout = lay_out(settings, there.get("CPU", 0), there.get("GPU", 0), launch.batch_size)
            check_gpus(layout, there.get("GPU", 0), path)
            _check_resources(launch, layout, "the cluster")
            yield layout


@contextmanager
def _local_ray(launch: Launch, layout: Layout) -> Iterator[None]:
    import ray

    context = ray.init(
        address=_LOCAL,
        log_to_driver=False,
        # The workers may reserve all cores; streaming tasks then share the cores with them.
        num_cpus=machine.cores() + launch.streams,
        num_gpus=layout.num_gpus,
        object_store_memory=_OBJECT_STORE_BYTES * (4 if launch.streams else 1),
        include_dashboard=launch.ray.include_dashboard,
    )
    if launch.ray.include_dashboard:
        say(f"Ray's dashboard is at http://{context.dashboard_url}")
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _cluster(launch: Launch) -> Iterator[None]:
    import ray

    with _answering(launch.ray, launch.path):
        ray.init(address=launch.ray.address, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _ray_resources() -> dict[str, float]:
    """The total resources of the Ray that this process is connected to, by name."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()
    return resources


def worker_resources(settings: Ray, layout: Layout) -> dict[str, float]:
    """The resources that Ray reserves for each worker, by name."""
    wanted = {"GPU": 1.0} | settings.resources_per_worker
    return {name: share for name, share in wanted.items() if name != "GPU" or layout.use_gpu}


def _check_resources(launch: Launch, layout: Layout, where: str) -> None:
    wanted = worker_resources(launch.ray, layout)
    _check(wanted, layout.num_workers, _ray_resources(), launch.path, where, launch.streams)


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
                f"{workers} workers with {share:g} CPU each leave none of the {available:g} CPU "
                f"that {where} has for reading, and data.loader: stream needs one",
                "lower num_workers or resources_per_worker.CPU",
            )
        if workers * share > available:
            raise UserError(
                f"{path}.num_workers",
                f"{workers} workers with {share:g} {resource} each need {workers * share:g} "
                f"{resource}, but {where} has {available:g}",
                f"lower num_workers or resources_per_worker.{resource}",
            )


def _check_authentication(settings: Ray, path: str) -> None:
    """Refuse a cluster to which anyone on the network could send code."""
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


@contextmanager
def _answering(settings: Ray, path: str) -> Iterator[None]:
    """Report in one line if no Ray answers at the address; Ray itself would retry for minutes."""
    try:
        if settings.endpoint:
            _knock(settings.endpoint)
        yield
    except ConnectionError as error:
        raise UserError(
            f"{path}.address",
            f"no Ray answers at {settings.address}",
            "start one there with `ray start --head`, or set the address to local",
        ) from error


def _knock(endpoint: tuple[str, int]) -> None:
    try:
        socket.create_connection(endpoint, timeout=_SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise ConnectionError(*endpoint) from error


def _keep_token_private() -> None:
    """Make sure that only this user can read the token with which to send code to a local Ray.

    Ray writes it to the home folder with default permissions, with which all users of the machine
    can often read it.
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
