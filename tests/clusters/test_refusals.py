"""Clusters on which no run can go well are refused in one line, before a worker starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.driver import PATHS, Driven, drive, on_cluster
from clusters.nodes import Nodes, two_nodes

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes, Ray on the first; each test adds the second as it wants it."""
    with two_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        nodes.start("a", paths=PATHS)
        yield nodes


@pytest.fixture
def nodes(made: Nodes) -> Iterator[Nodes]:
    yield made
    made.kill("b")


def the_error(nodes: Nodes, folder: Path, **keys: object) -> str:
    done = drive(nodes, Driven(folder, on_cluster(start_timeout=40.0, **keys)))
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: runs.name.ray.")


def other_version(folder: Path, package: str) -> Path:
    """A folder that makes a package pass for another version."""
    described = folder / "site" / f"{package}-0.0.1.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.0.1\n")
    return described.parent


def test_a_node_with_another_version_is_named(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start("b", paths=[other_version(tmp_path, "transformers"), *PATHS])
    line = the_error(nodes, tmp_path / "shared")
    assert line.startswith(
        "address: the nodes' software isn't that of this machine: "
        "10.77.0.2 has transformers 0.0.1 instead of "
    )
    assert line.count("10.77") == 1
