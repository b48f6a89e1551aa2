"""Projects to run the workflow in."""

import fcntl
import os
import signal
from pathlib import Path

import pytest
from faults.workflows import run_and_signal
from project import Project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose whole workflow was killed in its middle and has run to its end.

    Tests leave it as they found it. It is made once for all processes of pytest-xdist, whose
    temporary folders lie in one.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "finished"
    with (shared / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            project = Project.create(tmp_path_factory.mktemp("workflow") / "project")
            command = ("snakemake", "--cores", "8", "eval", "generate")
            killed = run_and_signal(project, "everything", 50, signal.SIGKILL, "tuned", command)
            assert killed.returncode == -signal.SIGKILL
            done = project.snakemake(*command[1:])
            assert done.returncode == 0, done.stderr
            project.folder.rename(folder)
    return Project(folder)


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """A project in which nothing has run yet."""
    return Project.create(tmp_path / "project")
