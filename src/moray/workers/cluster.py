"""Connect to Ray: a local Ray started for the run, or an existing cluster."""

import ipaddress
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import moray
from moray import machine
from moray.config.layout import Layout, lay_out
from moray.config.schema.sections import Ray
from moray.console import say
from moray.errors import UserError
from moray.workers.launch import (
    Launch,
    check_cores,
    check_room_for_reading,
    check_total,
    on_this_machine,
    worker_resources,
)
from moray.workers.nodes import alive_nodes, check_nodes, interface_setup

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


@contextmanager
def connected(launch: Launch) -> Iterator[Layout]:
    """Connect to Ray for the body; a local Ray is started before it and stopped after it.

    A cluster may still have too few resources for the workers; see `lack`.

    Yields:
        The number of workers, and whether each gets a GPU.

    Raises:
        UserError: if this machine has too few resources for the workers, Ray's token can't be kept
            private, nothing answers at the address, or the nodes' software isn't this machine's.
    """
    settings, path = launch.ray, launch.path
    check_cores(settings, path, launch.batch_size)
    os.environ.update(_ENVIRONMENT)
    _check_authentication(settings, path)
    if settings.address == _LOCAL:
        os.environ.update(_LOCAL_ENVIRONMENT)
        _keep_token_private()
        with on_this_machine(launch) as layout, _local_ray(launch, layout):
            wanted, there = worker_resources(settings, layout), _total_resources()
            check_room_for_reading(launch, layout, there, "this machine")
            check_total(wanted, layout.num_workers, there, path)
            yield layout
    else:
        with _cluster(launch):
            there = _total_resources()
            layout = lay_out(settings, there.get("CPU", 0), there.get("GPU", 0), launch.batch_size)
            check_room_for_reading(launch, layout, there, "the cluster")
            shared = launch.folder if launch.shared_folder else None
            check_nodes(worker_resources(settings, layout), path, shared, launch.libraries)
            yield layout


def _total_resources() -> dict[str, float]:
    # Imported late, because it reads the environment.
    import ray

    resources: dict[str, float] = ray.cluster_resources()
    return resources


def lack(launch: Launch, layout: Layout) -> str | None:
    """What a cluster lacks for the workers, in words; None if it has room for them."""
    wanted, needed = worker_resources(launch.ray, layout), layout.min_workers or layout.num_workers
    nodes = [node["Resources"] for node in alive_nodes()]
    room = sum(
        min(int(node.get(name, 0) // share) for name, share in wanted.items()) for node in nodes
    )
    if room >= needed:
        return None
    each = ", ".join(f"{share:g} {name}" for name, share in wanted.items())
    total = ", ".join(f"{sum(node.get(name, 0) for node in nodes):g} {name}" for name in wanted)
    plural = "worker" if needed == 1 else "workers"
    return f"{needed} {plural} with {each} each; the cluster has {total}"


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

    settings, key = launch.ray, f"{launch.path}.address"
    nobody = UserError(
        key,
        f"no Ray cluster answers at {settings.address}",
        "start one there with `ray start --head`, or set the address to local",
    )
    if settings.endpoint:
        # Where nothing listens, Ray would retry for minutes.
        try:
            socket.create_connection(settings.endpoint, timeout=_SECONDS_TO_ANSWER).close()
        except OSError as error:
            raise nobody from error
    environment: dict[str, Any] = {
        "worker_process_setup_hook": interface_setup(settings.network_interface)
    }
    if settings.upload_package:
        environment["py_modules"] = [str(Path(moray.__file__).parent)]
    try:
        ray.init(address=settings.address, log_to_driver=False, runtime_env=environment)
    except ConnectionError as error:
        if settings.endpoint is None:
            raise nobody from error
        raise UserError(
            key,
            f"{settings.address} is reachable, but Ray can't connect to it",
            "check that the token here is that of the cluster, and that this machine is one of its "
            "nodes",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_authentication(settings: Ray, path: str) -> None:
    """Refuse a cluster outside of this machine to which anyone on the network could send code."""
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
            # Atomically, because other runs may start at the same time; an existing one is kept.
            with tempfile.NamedTemporaryFile("w", dir=token.parent) as file:
                file.write(secrets.token_hex(32))
                file.flush()
                with suppress(FileExistsError):
                    os.link(file.name, token)
        if (mode := token.stat().st_mode) & 0o077:
            token.chmod(mode & 0o700)
    except OSError as error:
        raise UserError(
            str(token),
            f"can't write a token that only you can read ({error.strerror})",
            "make sure that you own the file and can write to its folder, or set RAY_AUTH_TOKEN",
        ) from error
