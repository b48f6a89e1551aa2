"""Projects to run the workflow in."""

from pathlib import Path

import pytest
from project import Project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose whole workflow has run. Tests leave it as they found it."""
    project = Project.create(tmp_path_factory.mktemp("workflow") / "project")
    done = project.snakemake("--cores", "8", "eval", "generate")
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """A project in which nothing has run yet."""
    return Project.create(tmp_path / "project")
