"""`ray job submit` to a head with a dashboard, with the commands of docs/deploy.md."""

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment.daemons import free_ports, until
from faults.workflows import last_step, prepare
from project import ROOT, Project

pytest.importorskip("opencensus", reason="needs ray[default]: pip install 'moray[dashboard]'")

# So many that `ray job stop`, which takes seconds to start on a busy machine, comes in time.
STEPS = 600


class Head:
    """Ray's head with a dashboard, on this machine.

    Attributes:
        environment: that of its clients.
    """

    def __init__(self, folder: Path) -> None:
        port, dashboard, agent, client = free_ports(4)
        self.environment = dict(os.environ) | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
            "RAY_JOB_STOP_WAIT_TIME_S": "120",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        # Nodes have the package by the upload alone.
        self.environment.pop("PYTHONPATH", None)
        ports = {
            "port": port,
            "dashboard-port": dashboard,
            "dashboard-agent-listen-port": agent,
            "ray-client-server-port": client,
            "min-worker-port": 0,
            "max-worker-port": 0,
        }
        command = ["ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
        command += [f"--{name}={number}" for name, number in ports.items()]
        command += ["--num-cpus=2", "--object-store-memory=134217728", f"--temp-dir={folder}"]
        self._process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(lambda: _answers(f"http://127.0.0.1:{agent}/api/healthz"))

    def run(self, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command of a client."""
        return subprocess.run(
            shlex.split(command),
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def end(self) -> None:
        """End all that it started."""
        self._process.terminate()
        self._process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    # Sockets are in it, so its path must be short.
    folder = Path(f"/tmp/moray-{os.getpid()}")
    head = Head(folder)
    yield head
    head.end()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose rows are there, as is what a clone has for jobs."""
    steps = {f"train.{key}": STEPS for key in ("max_steps", "eval_steps", "save_steps")}
    changes = {"ray.num_workers": 2, **steps}
    project = prepare(tmp_path_factory.mktemp("workflow") / "project", changes)
    shutil.copytree(ROOT / "deploy", project.folder / "deploy")
    shutil.copy(ROOT / ".gitignore", project.folder)
    return project


def _documented(command: str, name: str, folder: Path) -> str:
    """A command of the guide, for a job of another name and with another shared folder."""
    text = (ROOT / "docs/deploy.md").read_text().replace("\\\n", " ")
    (found,) = re.findall(rf"^{command} .*$", text, re.MULTILINE)
    return str(found).replace("my-run", name).replace("/shared/run", str(folder))


def _shared(project: Project, folder: Path) -> Project:
    """A shared folder in which the rows are there, and nothing that Ray uploads."""
    folder.mkdir()
    for name in ("data", "results", ".snakemake"):
        shutil.copytree(project.folder / name, folder / name)
    return Project(folder)


@pytest.mark.release
def test_a_stopped_job_goes_on_where_it_was(head: Head, project: Project, tmp_path: Path) -> None:
    stopped = _shared(project, tmp_path / "stopped")
    submit = _documented("ray job submit", "stopped", stopped.folder)
    with subprocess.Popen(
        shlex.split(submit),
        cwd=project.folder,
        env=head.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        until(lambda: last_step(stopped, "only") >= 20)
        ended = head.run(_documented("ray job stop", "stopped", stopped.folder), project.folder)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        job.communicate()
    # What is streamed to the client may end before the job does.
    log = head.run("ray job logs stopped", project.folder).stdout
    assert "as requested, and saved a checkpoint" in log
    saved = last_step(stopped, "only")
    assert list(stopped.folder.glob(f"results/state/only/*/checkpoints/step-{saved:08d}")), log

    again = head.run(_documented("ray job submit", "again", stopped.folder), project.folder)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"run only: {STEPS} steps" in again.stdout
    # Other tests compare weights after a stop.
    record = json.loads((stopped.folder / "results/runs/only/train.json").read_text())
    assert record["resumed_from"] == saved


@pytest.mark.release
def test_a_job_fails_with_its_workflow(head: Head, project: Project, tmp_path: Path) -> None:
    submit = _documented("ray job submit", "wrong", tmp_path / "run")
    done = head.run(f"{submit} --config runs=7", project.folder)
    assert done.returncode == 1
    assert "runs" in done.stdout
