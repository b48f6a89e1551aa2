"""Projects to run the workflow in."""

import fcntl
import os
from pathlib import Path

import pytest
from project import Project

# Without Ray, whose start takes longer than the training.
QUICK = {"launcher": "torchrun", "max_steps": 120, "save_steps": 20, "learning_rate": 1e-4}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose whole workflow has run.

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
            project.configure(["runs", "tuned", "train"], QUICK)
            project.configure(["runs", "tuned", "ray"], {"num_workers": 2})
            project.configure(["defaults", "ray", "num_workers"], 1)
            done = project.snakemake("--cores", "8", "eval", "generate")
            assert done.returncode == 0, done.stderr
            project.folder.rename(folder)
    return Project(folder)


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """A project in which nothing has run yet."""
    return Project.create(tmp_path / "project")
