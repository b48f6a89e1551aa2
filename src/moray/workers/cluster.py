"""Connect to Ray: a local Ray started for the run, or an existing cluster with its nodes."""

import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import moray
from moray import machine
from moray.config.layout import Layout, lay_out
from moray.config.schema.sections import Ray
from moray.console import say, wait_for
from moray.errors import UserError, first_line
from moray.workers.launch import (
    Launch,
    check_cores,
    check_room_for_reading,
    check_total,
    reserve_workers,
    worker_resources,
)

_LOCAL = "local"

# Weights don't go through Ray's object store; by default, it would reserve a third of memory.
_OBJECT_STORE_BYTES = 128 * 2**20

# The text of a window and the rows made of it, with those that wait; Ray spills more to disk.
_BYTES_OF_A_TASK = 64 * 2**20

_SECONDS_TO_ANSWER = 10

_ENVIRONMENT = {
    # The interval at which the controller polls workers. The default adds a second to each start,
    # end and report.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # The interval at which Ray Train looks for nodes that are about to be preempted, of which some
    # clouds tell only 30 s before. By default, 5 s.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
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
def connect_ray(launch: Launch) -> Iterator[Layout]:
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
        # The workers may reserve all cores; streaming tasks then share the cores with them.
        cores, size = machine.cores() + launch.streams, _OBJECT_STORE_BYTES
        size *= 4 if launch.streams else 1
        with (
            reserve_workers(launch) as layout,
            _local_ray(settings, cores, layout.num_gpus, size),
        ):
            resources, there = worker_resources(settings, layout), _total_resources()
            check_room_for_reading(launch, layout, there, "this machine")
            check_total(resources, layout.num_workers, there, path)
            yield layout
    else:
        with _cluster(settings, path):
            there = _total_resources()
            layout = lay_out(settings, there.get("CPU", 0), there.get("GPU", 0), launch.batch_size)
            check_room_for_reading(launch, layout, there, "the cluster")
            shared = None if launch.exchange else launch.folder
            _check_nodes(worker_resources(settings, layout), path, shared, launch.libraries)
            yield layout


@contextmanager
def connect_for_tasks(settings: Ray, path: str, cores: int) -> Iterator[int]:
    """Connect to Ray for tasks of one CPU each, as `connect_ray` does for workers.

    Args:
        path: config path of the settings, for errors.
        cores: number of CPUs of a local Ray.

    Yields:
        The number of CPUs.
    """
    os.environ.update(_ENVIRONMENT)
    _check_authentication(settings, path)
    if settings.address == _LOCAL:
        os.environ.update(_LOCAL_ENVIRONMENT)
        _keep_token_private()
        with _local_ray(settings, cores, 0, cores * _BYTES_OF_A_TASK):
            yield cores
    else:
        with _cluster(settings, path):
            _check_nodes({"CPU": 1}, path, None)
            yield int(_total_resources().get("CPU", 0))


def _total_resources() -> dict[str, float]:
    # Imported late, because it reads the environment.
    import ray

    resources: dict[str, float] = ray.cluster_resources()
    return resources


def lack(launch: Launch, layout: Layout) -> str | None:
    """The resources that a cluster lacks for the workers, in words; None if it has enough."""
    resources = worker_resources(launch.ray, layout)
    num_workers = layout.min_workers or layout.num_workers
    nodes = [node["Resources"] for node in _alive_nodes()]
    room = sum(
        min(int(node.get(name, 0) // share) for name, share in resources.items()) for node in nodes
    )
    if room >= num_workers:
        return None
    each = ", ".join(f"{share:g} {name}" for name, share in resources.items())
    total = ", ".join(f"{sum(node.get(name, 0) for node in nodes):g} {name}" for name in resources)
    plural = "worker" if num_workers == 1 else "workers"
    return f"{num_workers} {plural} with {each} each; the cluster has {total}"


@contextmanager
def _local_ray(settings: Ray, num_cpus: int, num_gpus: int, size: int) -> Iterator[None]:
    """A local Ray for the body, with an object store of so many bytes."""
    import ray

    wait_for("Ray to start")
    context = ray.init(
        address=_LOCAL,
        log_to_driver=False,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        object_store_memory=size,
        include_dashboard=settings.include_dashboard,
    )
    if settings.include_dashboard:
        say(f"Ray's dashboard is at http://{context.dashboard_url}")
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _cluster(settings: Ray, path: str) -> Iterator[None]:
    import ray

    key = f"{path}.address"
    nobody = UserError(
        key,
        f"no Ray cluster answers at {settings.address}",
        "start one there with `ray start --head`, or set the address to local",
    )
    if settings.endpoint:
        # If nothing listens there, Ray would retry for minutes.
        try:
            socket.create_connection(settings.endpoint, timeout=_SECONDS_TO_ANSWER).close()
        except OSError as error:
            raise nobody from error
    environment: dict[str, Any] = {
        "worker_process_setup_hook": interface_setup(settings.network_interface)
    }
    if settings.upload_package:
        environment["py_modules"] = [str(Path(moray.__file__).parent)]
    wait_for(f"Ray at {settings.address}")
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
    variables = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if variables or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    token = Path.home() / ".ray" / "auth_token"
    try:
        if not token.exists():
            token.parent.mkdir(parents=True, exist_ok=True)
            # Atomically, because other runs may start at the same time; an existing one is kept.
            with NamedTemporaryFile("w", dir=token.parent) as file:
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


_LIBRARIES = ("ray", "torch", "transformers")
# A node that doesn't answer in this time may be lost; Ray would wait for it for longer.
_SECONDS_OF_A_NODE = 60.0

# What a node tells: versions by package, of `moray` with a digest of its code, without what is
# missing; and whether it sees the folder of the run.
_NodeFacts = tuple[dict[str, str], bool]


def _alive_nodes() -> list[dict[str, Any]]:
    """Ray's descriptions of the nodes that are alive, without those that are ending."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _check_nodes(
    resources: Mapping[str, float], path: str, folder: Path | None, libraries: tuple[str, ...] = ()
) -> None:
    """Check that the nodes with room for a worker have this machine's software and see a folder.

    Args:
        resources: what a worker needs, by name.
        folder: folder that all nodes must see; None for no such folder.
        libraries: names of libraries that the run needs besides those of all runs.

    Raises:
        UserError: naming each node that doesn't.
    """
    with NamedTemporaryFile(dir=folder, prefix=".seen-") if folder else nullcontext() as mark:
        look = _look((*_LIBRARIES, *libraries), mark.name if mark else None)
        (versions, _), there = look(), _ask_nodes(look, resources, path)
    if faults := [
        fault
        for node, (node_versions, _) in there.items()
        for fault in _differences(node, node_versions, versions)
    ]:
        raise UserError(
            f"{path}.address",
            f"the nodes' software differs from that of this machine: {', '.join(faults)}",
            "install the same versions; for moray alone, ray.upload_package: true sends this one",
        )
    if blind := [node for node, (_, sees_folder) in there.items() if not sees_folder]:
        raise UserError(
            f"{path}.storage_path",
            f"{', '.join(blind)} can't see {folder} of {socket.gethostname()}",
            "choose a folder on a disk that all nodes share under the same path",
        )


def _ask_nodes(
    look: Callable[[], _NodeFacts], resources: Mapping[str, float], path: str
) -> dict[str, _NodeFacts]:
    """The facts of each node, by its address."""
    import ray
    from ray.exceptions import RayError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    addresses = {}
    for node in _alive_nodes():
        if all(node["Resources"].get(name, 0) >= share for name, share in resources.items()):
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = task.options(scheduling_strategy=strategy).remote()
            addresses[answer] = node["NodeManagerAddress"]
    limit = _SECONDS_OF_A_NODE
    answers, silent = ray.wait(list(addresses), num_returns=len(addresses), timeout=limit)
    facts, remedy = {}, "check this node, or remove it from the cluster"
    for answer in silent:
        problem = f"no answer in {_SECONDS_OF_A_NODE:g} s from node {addresses[answer]}"
        raise UserError(f"{path}.address", problem, remedy)
    for answer in answers:
        try:
            facts[addresses[answer]] = ray.get(answer)
        except TaskUnschedulableError:
            # The node was lost a few seconds ago, and may be back under another identifier.
            continue
        except RayError as error:
            problem = f"no task can run on node {addresses[answer]} ({first_line(error)})"
            raise UserError(f"{path}.address", problem, remedy) from error
    return dict(sorted(facts.items()))


def _differences(node: str, there: dict[str, str], here: dict[str, str]) -> Iterator[str]:
    for name, version in here.items():
        other = there.get(name)
        if other is None:
            yield f"{node} has no {name}"
        elif other != version:
            yield f"{node} has {name} {other} instead of {version}"


def _look(libraries: tuple[str, ...], mark: str | None) -> Callable[[], _NodeFacts]:
    # Nested, so that it is pickled by value: a node may lack this package.
    def look() -> _NodeFacts:
        import hashlib
        import platform
        from contextlib import suppress
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec
        from pathlib import Path

        versions = {"python": platform.python_version()}
        for name in libraries:
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
        if spec := find_spec("moray"):
            package, digest = Path(str(spec.origin)).parent, hashlib.sha256()
            for file in sorted(package.rglob("*.py")):
                digest.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes())
            versions["moray"] = f"of code {digest.hexdigest()[:8]}"
        return versions, mark is None or Path(mark).is_file()

    return look


def interface_setup(interface: str | None) -> Callable[[], None]:
    """A function that each process of a job calls first on its node.

    It sets this interface, or by default the one with the node's address. The backends themselves
    look up the host's name, which often gives an address that other nodes can't reach. The
    environment of a node takes precedence.
    """

    # Nested, so that it is pickled by value: nodes may lack this package, which is checked later.
    def set_interface() -> None:
        import os

        import psutil
        import ray.util

        node = ray.util.get_node_ip_address()
        interfaces = [
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(address.address == node for address in addresses)
        ]
        for name in [interface] if interface else interfaces:
            # PyTorch's backends read these.
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(variable, name)

    return set_interface
