"""The nodes of a cluster: whether their software is this machine's, and how they are reached."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from moray.errors import UserError, first_line

_LIBRARIES = ("ray", "torch", "transformers")
# A node that doesn't answer in this time may be lost; Ray would wait for it for longer.
_SECONDS_TO_ANSWER = 60.0

# What a node tells: versions by package, of `moray` with a digest of its code, without what is
# missing; and whether it sees the folder of the run.
_Seen = tuple[dict[str, str], bool]


def alive_nodes() -> list[dict[str, Any]]:
    """Ray's descriptions of the nodes that are alive, without those that are ending."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def check_nodes(
    wanted: Mapping[str, float], path: str, folder: Path | None, libraries: tuple[str, ...] = ()
) -> None:
    """Check that the nodes with room for a worker have this machine's software and see a folder.

    Args:
        wanted: what a worker needs, by name.
        folder: folder that all nodes must see; None for no such folder.
        libraries: names of libraries that the run needs besides those of all runs.

    Raises:
        UserError: naming each node that doesn't.
    """
    with NamedTemporaryFile(dir=folder, prefix=".seen-") if folder else nullcontext() as mark:
        look = _look((*_LIBRARIES, *libraries), mark.name if mark else None)
        (versions, _), there = look(), _asked(look, wanted, path)
    if faults := [
        fault for node, (found, _) in there.items() for fault in _differing(node, found, versions)
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


def _asked(look: Callable[[], _Seen], wanted: Mapping[str, float], path: str) -> dict[str, _Seen]:
    """What each node tells, by its address."""
    import ray
    from ray.exceptions import RayError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {}
    for node in alive_nodes():
        if all(node["Resources"].get(name, 0) >= share for name, share in wanted.items()):
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[task.options(scheduling_strategy=strategy).remote()] = node["NodeManagerAddress"]
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_SECONDS_TO_ANSWER)
    found, remedy = {}, "check this node, or remove it from the cluster"
    for answer in silent:
        problem = f"no answer in {_SECONDS_TO_ANSWER:g} s from node {asked[answer]}"
        raise UserError(f"{path}.address", problem, remedy)
    for answer in answered:
        try:
            found[asked[answer]] = ray.get(answer)
        except TaskUnschedulableError:
            # It was lost a few seconds ago, and may be back under another identifier.
            continue
        except RayError as error:
            problem = f"no task can run on node {asked[answer]} ({first_line(error)})"
            raise UserError(f"{path}.address", problem, remedy) from error
    return dict(sorted(found.items()))


def _differing(node: str, there: dict[str, str], here: dict[str, str]) -> Iterator[str]:
    for name, version in here.items():
        other = there.get(name)
        if other is None:
            yield f"{node} has no {name}"
        elif other != version:
            yield f"{node} has {name} {other} instead of {version}"


def _look(libraries: tuple[str, ...], mark: str | None) -> Callable[[], _Seen]:
    # Nested, so that it is pickled by value: a node may lack this package.
    def look() -> _Seen:
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


def interface_setup(given: str | None) -> Callable[[], None]:
    """A function that each process of a job calls first on its node.

    It sets the given interface, or the one with the node's address. By themselves, the backends
    look up the host's name, which often gives an address that other nodes can't reach. What a
    node's environment says comes first.
    """

    # Nested, so that it is pickled by value: nodes may lack this package, which is checked later.
    def set_interface() -> None:
        import os

        import psutil
        import ray.util

        node = ray.util.get_node_ip_address()
        found = [
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(address.address == node for address in addresses)
        ]
        for name in [given] if given else found:
            # Of PyTorch's backends.
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(variable, name)

    return set_interface
