"""Two hosts on one machine: network namespaces with a cable between them, and Ray on both."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

NAMES = ("a", "b")
ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}
ADDRESS = f"{ADDRESSES['a']}:6379"
_TOKEN = "0123456789abcdef" * 4
_TOOLS = ("ip", "nsenter", "unshare")


class Nodes:
    """Two nodes, `a` and `b`. Ray's head is on `a`, where drivers run too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._space = {name: f"moray-{os.getpid()}-{name}" for name in NAMES}
        self.environment = dict(os.environ) | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": _TOKEN,
            # Paths of Ray's sockets have a limit of 107 bytes, which pytest's folders exceed.
            "RAY_TMPDIR": "/tmp",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def add(self) -> None:
        """Add both namespaces and the cable."""
        for space in self._space.values():
            _run("ip", "netns", "add", space)
        one, other = self._space.values()
        _run(*f"ip link add eth0 netns {one} type veth peer name eth0 netns {other}".split())
        for name, space in self._space.items():
            _run(*f"ip -n {space} addr add {ADDRESSES[name]}/24 dev eth0".split())
            _run(*f"ip -n {space} link set lo up".split())
            _run(*f"ip -n {space} link set eth0 up".split())

    def remove(self) -> None:
        """End all that runs in the namespaces, and remove them."""
        for name, space in self._space.items():
            self.kill(name)
            _run("ip", "netns", "del", space)

    def command(self, name: str, *command: str, hidden: Path | None = None) -> list[str]:
        """A command that runs on a node, whose files of Ray are its own.

        Args:
            name: the node's name.
            command: the command.
            hidden: folder that is empty for the node.
        """
        files = self._folder / f"ray-{name}"
        files.mkdir(parents=True, exist_ok=True)
        Path("/tmp/ray").mkdir(exist_ok=True)
        mounts: list[tuple[object, ...]] = [("--bind", files, "/tmp/ray")]
        if hidden:
            mounts.append(("-t", "tmpfs", "tmpfs", hidden))
        script = " && ".join(shlex.join(["mount", *map(str, mount)]) for mount in mounts)
        inside = ("bash", "-c", f'{script} && exec "$@"', "bash", *command)
        return ["nsenter", f"--net=/run/netns/{self._space[name]}", "unshare", "--mount", *inside]

    def start(
        self,
        name: str,
        cpus: int = 1,
        paths: Sequence[Path] = (),
        hidden: Path | None = None,
        **environment: str,
    ) -> None:
        """Start Ray on a node.

        Args:
            name: its name.
            cpus: CPUs that Ray takes it to have.
            paths: put in front of the path for modules.
            hidden: folder that is empty for the node.
            environment: added to that of the node's processes.
        """
        place = ["--head", "--port=6379", "--include-dashboard=false"]
        if name != "a":
            place = [f"--address={ADDRESS}"]
        whole = self.environment | environment | {"PYTHONPATH": ":".join(map(str, paths))}
        options = [f"--num-cpus={cpus}", "--object-store-memory=134217728"]
        done = subprocess.run(
            self.command(
                name,
                *("ray", "start", *place, f"--node-ip-address={ADDRESSES[name]}", *options),
                hidden=hidden,
            ),
            env=whole,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def cable(self, state: str) -> None:
        """Plug in or pull the cable between the nodes: `up` or `down`."""
        _run(*f"ip -n {self._space['b']} link set eth0 {state}".split())

    def processes(self, name: str) -> Mapping[int, str]:
        """The commands of a node's processes, by their identifiers."""
        listed = _run("ip", "netns", "pids", self._space[name]).split()
        found = {}
        for pid in map(int, listed):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid] = command.replace(b"\0", b" ").decode(errors="replace")
        return found

    def kill(self, name: str, text: str = "") -> None:
        """SIGKILL to the processes of a node that have a text in their command."""
        for pid, command in self.processes(name).items():
            if text in command:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    """Two nodes without Ray; skips the test where they can't be made."""
    if missing := [tool for tool in _TOOLS if not shutil.which(tool)]:
        pytest.skip(f"needs {', '.join(missing)} (iproute2, util-linux)")
    if os.geteuid() != 0:
        pytest.skip("needs root, to add network namespaces")
    nodes = Nodes(folder)
    nodes.add()
    try:
        yield nodes
    finally:
        nodes.remove()
