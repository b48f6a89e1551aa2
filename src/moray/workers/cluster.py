"""Connect to Ray: a local Ray started for the run, or an existing cluster."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import moray
from moray import machine
from moray.config.layout import Layout, lay_out
from moray.config.schema.sections import Ray
from moray.console import say
from moray.errors import UserError
from moray.workers.authentication import check_authentication, keep_token_private
from moray.workers.launch import Launch, on_this_machine
from moray.workers.network import interface_setup
from moray.workers.nodes import alive_nodes, check_nodes
from moray.workers.resources import (
    check_cores,
    check_room_for_reading,
    check_total,
    described,
    room_for,
    worker_resources,
)

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
    check_authentication(settings, path)
    if settings.address == _LOCAL:
        os.environ.update(_LOCAL_ENVIRONMENT)
        keep_token_private()
        with on_this_machine(launch) as layout, _local_ray(launch, layout):
            _check_resources(launch, layout, "this machine")
            yield layout
    else:
        with _cluster(launch):
            there = _ray_resources()
            layout = lay_out(settings, there.get("CPU", 0), there.get("GPU", 0), launch.batch_size)
            if launch.streams:
                _check_room_for_reading(launch, layout, "the cluster")
            wanted = worker_resources(settings, layout)
            check_nodes(
                wanted, path, launch.folder if launch.shared_folder else None, launch.libraries
            )
            yield layout


def lack(launch: Launch, layout: Layout) -> str | None:
    """What a cluster lacks for the workers, in words; None if it has room for them."""
    wanted, needed = worker_resources(launch.ray, layout), layout.min_workers or layout.num_workers
    nodes = [node["Resources"] for node in alive_nodes()]
    return None if room_for(wanted, nodes) >= needed else described(wanted, needed, nodes)


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
        ray.init(
            address=launch.ray.address, log_to_driver=False, runtime_env=_runtime_env(launch.ray)
        )
    try:
        yield
    finally:
        ray.shutdown()


def _runtime_env(settings: Ray) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "worker_process_setup_hook": interface_setup(settings.network_interface)
    }
    if settings.upload_package:
        wanted["py_modules"] = [str(Path(moray.__file__).parent)]
    return wanted


def _ray_resources() -> dict[str, float]:
    """The total resources of the Ray that this process is connected to, by name."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()
    return resources


def _check_resources(launch: Launch, layout: Layout, where: str) -> None:
    wanted = worker_resources(launch.ray, layout)
    if launch.streams:
        _check_room_for_reading(launch, layout, where)
    check_total(wanted, layout.num_workers, _ray_resources(), launch.path, where)


def _check_room_for_reading(launch: Launch, layout: Layout, where: str) -> None:
    wanted, workers = worker_resources(launch.ray, layout), layout.num_workers
    check_room_for_reading(wanted, workers, _ray_resources(), launch.path, where)


@contextmanager
def _answering(settings: Ray, path: str) -> Iterator[None]:
    """Report in one line that nothing answers at the address; Ray would retry for minutes."""
    try:
        if settings.endpoint:
            _knock(settings.endpoint)
        yield
    except _SilentError as error:
        raise _nobody(settings, path) from error
    except ConnectionError as error:
        if settings.endpoint is None:
            raise _nobody(settings, path) from error
        raise UserError(
            f"{path}.address",
            f"{settings.address} is reachable, but Ray can't connect to it",
            "check that the token here is that of the cluster, and that this machine is one of its "
            "nodes",
        ) from error


def _nobody(settings: Ray, path: str) -> UserError:
    return UserError(
        f"{path}.address",
        f"no Ray cluster answers at {settings.address}",
        "start one there with `ray start --head`, or set the address to local",
    )


class _SilentError(Exception):
    """Nothing listens at an address."""


def _knock(endpoint: tuple[str, int]) -> None:
    try:
        socket.create_connection(endpoint, timeout=_SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise _SilentError from error
