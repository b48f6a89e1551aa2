"""A Slurm of two nodes on one machine: its own munged, slurmctld and two slurmd."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deployment.daemons import free_ports, until

NODES = ("n1", "n2")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")

# Without cgroups and accounting, so that it also runs in a container. No process tracking by
# cgroup means that a step is ended by the parents of its processes.
_CONFIG = """
ClusterName=moray
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
KillWait=30
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=2 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=2 RealMemory=4000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running Slurm.

    Attributes:
        environment: that of its commands.
    """

    def __init__(self, folder: Path) -> None:
        self.environment = dict(os.environ) | {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str, folder: Path | None = None, **environment: str) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run(
            command,
            env=self.environment | environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """The state of a job, such as RUNNING or COMPLETED."""
        shown = self.run("scontrol", "show", "job", job, "--oneliner")
        return dict(field.split("=", 1) for field in shown.split() if "=" in field)["JobState"]

    def wait(self, job: str, *states: str) -> str:
        """Wait until a job is in one of some states; returns which."""
        until(lambda: self.state(job) in states)
        return self.state(job)

    def cancel_all(self) -> None:
        """Cancel all jobs and wait for their end: they would outlive the daemons."""
        self.run("scancel", "--user=root")
        until(lambda: not self.run("squeue", "--noheader"))


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start Slurm for the body; skips the test where it can't be started."""
    if missing := [name for name in _PROGRAMS if not shutil.which(name)]:
        pytest.skip(f"needs {', '.join(missing)}: Debian's packages slurm-wlm and munge")
    if os.geteuid() != 0:
        pytest.skip("needs root, as which slurmd runs jobs")
    folder.mkdir(parents=True)
    (folder / "state").mkdir()
    port, port1, port2 = free_ports(3)
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(
        _CONFIG.format(folder=folder, host=host, port=port, port1=port1, port2=port2)
    )
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    own = Slurm(folder)
    # In the foreground, so that they are this process's children and are ended by their ids.
    munged = ["munged", "--force", "--foreground", f"--key-file={key}"]
    munged += [f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"]
    munged += [f"--seed-file={folder}/munged.seed", f"--log-file={folder}/munged.log"]
    commands = [
        munged,
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "n1"],
        ["slurmd", "-D", "-N", "n2"],
    ]
    daemons = []
    try:
        for command in commands:
            daemons.append(
                subprocess.Popen(
                    command,
                    env=own.environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        until(lambda: _nodes(own) == ["idle"] * len(NODES))
        try:
            yield own
        finally:
            own.cancel_all()
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait()


def _nodes(own: Slurm) -> list[str]:
    """The states of the nodes; none as long as the controller doesn't answer."""
    shown = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%T"],
        env=own.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.split()
