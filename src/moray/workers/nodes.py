"""The nodes of a cluster, and whether they have the same software as this machine."""

import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moray.errors import UserError, first_line

_LIBRARIES = ("ray", "torch", "transformers")

# A node that doesn't answer in this time may be lost; Ray would wait for it for longer.
_SECONDS_TO_ANSWER = 60.0


@dataclass(frozen=True)
class _Seen:
    """What a node told.

    Attributes:
        versions: by package; of `moray` with a digest of its code. What is missing isn't there.
        folder: whether it sees the folder of the run.
    """

    versions: dict[str, str]
    folder: bool


def alive_nodes() -> list[dict[str, Any]]:
    """Ray's descriptions of the nodes that are alive, without those that are ending."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def check_nodes(
    wanted: Mapping[str, float], path: str, folder: Path, libraries: tuple[str, ...] = ()
) -> None:
    """Check that the nodes with room for a worker have this machine's software and see a folder.

    Args:
        wanted: what a worker needs, by name.
        path: path of the `ray` section in the config.
        folder: folder shared by all workers.
        libraries: names of libraries that the run needs besides those of all runs.

    Raises:
        UserError: naming each node that doesn't.
    """
    mark = folder / f".seen-{uuid.uuid4().hex[:8]}"
    mark.touch()
    try:
        look = _look((*_LIBRARIES, *libraries), str(mark))
        here, there = _Seen(*look()), _asked(look, wanted, path)
    finally:
        mark.unlink()
    if faults := [fault for node, seen in there.items() for fault in _differing(node, seen, here)]:
        raise UserError(
            f"{path}.address",
            f"the nodes' software isn't that of this machine: {', '.join(faults)}",
            "install the same versions; for moray alone, ray.upload_package: true sends this one",
        )
    if blind := [node for node, seen in there.items() if not seen.folder]:
        raise UserError(
            f"{path}.storage_path",
            f"{', '.join(blind)} can't see {folder} of {socket.gethostname()}",
            "choose a folder on a disk that all nodes share under the same path",
        )


def _asked(
    look: Callable[[], tuple[dict[str, str], bool]], wanted: Mapping[str, float], path: str
) -> dict[str, _Seen]:
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
            found[asked[answer]] = _Seen(*ray.get(answer))
        except TaskUnschedulableError:
            # It was lost a few seconds ago, and may be back under another identifier.
            continue
        except RayError as error:
            problem = f"no task can run on node {asked[answer]} ({first_line(error)})"
            raise UserError(f"{path}.address", problem, remedy) from error
    return dict(sorted(found.items()))


def _differing(node: str, there: _Seen, here: _Seen) -> Iterator[str]:
    for name, version in here.versions.items():
        other = there.versions.get(name)
        if other is None:
            yield f"{node} has no {name}"
        elif other != version:
            yield f"{node} has {name} {other} instead of {version}"


def _look(libraries: tuple[str, ...], mark: str) -> Callable[[], tuple[dict[str, str], bool]]:
    # Nested, so that it is pickled by value: a node may lack this package.
    def look() -> tuple[dict[str, str], bool]:
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
        return versions, Path(mark).is_file()

    return look
