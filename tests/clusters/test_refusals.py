"""Clusters on which no run can go well are refused in one line, before a worker starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.driver import PATHS, Driven, drive, on_cluster
from clusters.nodes import ADDRESS, Nodes, two_nodes

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


def the_error(nodes: Nodes, folder: Path, keys: dict[str, object], **environment: str) -> str:
    """The only one of a driver, without the start that all have."""
    done = drive(nodes, Driven(folder, on_cluster(**keys)), **environment)
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: runs.name.ray.")


def other_version(folder: Path, package: str) -> Path:
    """A folder that makes a package pass for another version."""
    described = folder / f"{package}-0.0.1.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.0.1\n")
    return folder


def test_a_node_with_another_version_is_named(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start("b", paths=[other_version(tmp_path / "site", "transformers"), *PATHS])
    line = the_error(nodes, tmp_path / "shared", {})
    assert line.startswith(
        "address: the nodes' software differs from that of this machine: "
        "10.77.0.2 has transformers 0.0.1 instead of "
    )
    assert line.count("10.77") == 1


@pytest.mark.release
def test_a_node_with_other_code_is_named_and_can_be_sent_this(nodes: Nodes, tmp_path: Path) -> None:
    """A node where the package doesn't even import is in its place."""
    (tmp_path / "moray").mkdir()
    (tmp_path / "moray/__init__.py").write_text("raise ImportError")
    nodes.start("b", paths=[tmp_path, *PATHS])
    line = the_error(nodes, tmp_path / "shared", {})
    assert line.startswith(
        "address: the nodes' software differs from that of this machine: 10.77.0.2 has moray of "
        "code "
    )
    assert line.endswith(
        "; install the same versions; for moray alone, ray.upload_package: true sends this one"
    )
    done = drive(nodes, Driven(tmp_path / "again", on_cluster(upload_package=True)))
    assert done.returncode == 0, done.stderr


def test_without_the_token_no_run_starts(made: Nodes, tmp_path: Path) -> None:
    line = the_error(made, tmp_path / "none", {}, RAY_AUTH_MODE="disabled")
    assert line.startswith(f"address: got {ADDRESS}, a cluster outside this machine, without ")
    line = the_error(made, tmp_path / "wrong", {}, RAY_AUTH_TOKEN="f" * 64)
    assert line.startswith(f"address: {ADDRESS} is reachable, but Ray can't connect to it")


def test_a_node_that_does_not_see_the_folder_of_the_run_is_named(
    nodes: Nodes, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    nodes.start("b", paths=PATHS, hidden=hidden)
    line = the_error(nodes, hidden / "shared", {})
    assert line.startswith(f"storage_path: 10.77.0.2 can't see {hidden}/shared of ")


def test_workers_that_a_cluster_has_no_room_for_are_waited_for(made: Nodes, tmp_path: Path) -> None:
    keys = {"num_workers": 3, "start_timeout": 5.0}
    done = drive(made, Driven(tmp_path / "shared", on_cluster(**keys)))
    lack = "3 workers with 1 CPU each; the cluster has 1 CPU"
    assert f"waiting up to 5 s for {lack}" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"error: runs.name.ray.start_timeout: no workers for 5 s: {lack}; add nodes, lower "
        "num_workers, or raise it; the same command continues"
    )
