"""Two nodes of which one is lost, or the network between them."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters.nodes import ADDRESS, Nodes, two_nodes
from faults.workflows import (
    COMMAND,
    STEPS,
    check_equal,
    environment,
    last_step,
    losses,
    prepare,
    run,
)
from fleet import until
from project import Project

pytestmark = pytest.mark.release

ON_NODES = {"ray.address": ADDRESS, "ray.num_workers": 2}
AT = 100


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return prepare(tmp_path_factory.mktemp("nodes") / "ready", ON_NODES)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with two_nodes(tmp_path) as made:
        yield made


class Workflow:
    """A workflow on node `a`, with Ray on both nodes."""

    def __init__(self, project: Project, nodes: Nodes) -> None:
        self.project, self.nodes = project, nodes
        self._environment = nodes.environment | {
            name: value
            for name, value in environment(project).items()
            if name in ("INJECTED", "PYTHONPATH")
        }
        for name in ("a", "b"):
            self.start(name)

    def start(self, name: str) -> None:
        """Start Ray on a node."""
        paths = [Path(path) for path in self._environment["PYTHONPATH"].split(os.pathsep)]
        self.nodes.start(name, paths=paths, INJECTED=self._environment["INJECTED"])

    def run(self, at: int = STEPS, then: Callable[[], None] = lambda: None) -> tuple[int, str]:
        """Run the workflow to its end; returns its status and what it printed.

        Args:
            at: step after which something happens.
            then: what happens.
        """
        with subprocess.Popen(
            self.nodes.command("a", *COMMAND),
            cwd=self.project.folder,
            env=self._environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        ) as started:
            if at < STEPS:
                until(lambda: last_step(self.project, "only") >= at or started.poll() is not None)
                then()
            _, printed = started.communicate()
        return started.returncode, printed


@pytest.fixture(scope="module")
def undisturbed(ready: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project after an undisturbed run on two nodes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    project = ready.copy(folder / "project")
    with two_nodes(folder) as nodes:
        status, printed = Workflow(project, nodes).run()
    assert status == 0, printed
    return project


@pytest.mark.parametrize("victim", ["worker", "raylet", "node"])
def test_what_is_lost_on_the_second_node_and_comes_back_costs_no_bit(
    victim: str, ready: Project, undisturbed: Project, nodes: Nodes, tmp_path: Path
) -> None:
    workflow = Workflow(ready.copy(tmp_path / "project"), nodes)

    def lose() -> None:
        commands = {"worker": "ray::RayTrainWorker", "raylet": "/raylet/raylet", "node": ""}
        nodes.kill("b", commands[victim])
        if victim != "worker":
            # A lost raylet's processes end by themselves, but for one that reads logs.
            until(lambda: not any("ray::" in command for command in nodes.processes("b").values()))
            nodes.kill("b")
            workflow.start("b")

    status, printed = workflow.run(AT, lose)
    assert status == 0, printed
    check_equal(workflow.project, undisturbed)


def test_a_driver_that_is_killed_continues_on_the_same_cluster(
    ready: Project, undisturbed: Project, nodes: Nodes, tmp_path: Path
) -> None:
    workflow = Workflow(ready.copy(tmp_path / "project"), nodes)
    status, _ = workflow.run(AT, lambda: nodes.kill("a", ".snakemake/scripts/"))
    assert status != 0
    status, printed = workflow.run()
    assert status == 0, printed
    assert re.search(r"resumed from step [1-9]", printed)
    check_equal(workflow.project, undisturbed)


@pytest.mark.parametrize("lost", ["node", "network"])
def test_a_run_whose_node_does_not_come_back_ends_in_a_line(
    lost: str, ready: Project, undisturbed: Project, nodes: Nodes, tmp_path: Path
) -> None:
    workflow = Workflow(ready.copy(tmp_path / "project"), nodes)
    workflow.project.configure(["defaults", "ray", "start_timeout"], 90)
    lose = {"node": lambda: nodes.kill("b"), "network": lambda: nodes.cable("down")}
    status, printed = workflow.run(AT, lose[lost])
    assert status != 0
    lack = "2 workers with 1 CPU each; the cluster has 1 CPU"
    assert f"waiting up to 90 s for {lack}" in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert line == (
        f"error: runs.only.ray.start_timeout: no workers for 90 s: {lack}; add nodes, lower "
        "num_workers, or raise it; the same command continues"
    )
    nodes.kill("b")
    nodes.cable("up")
    workflow.start("b")
    status, printed = workflow.run()
    assert status == 0, printed
    check_equal(workflow.project, undisturbed)


def test_an_elastic_run_goes_on_without_the_lost_node_with_the_losses_of_one_machine(
    ready: Project, nodes: Nodes, tmp_path: Path
) -> None:
    # Rounding grows from step to step, so there are few, and small ones.
    few = {"precision": "fp32", "max_steps": 140, "learning_rate": 1e-3}
    fixed, elastic = ready.copy(tmp_path / "fixed"), ready.copy(tmp_path / "elastic")
    for project in (fixed, elastic):
        for key, value in few.items():
            project.configure(["defaults", "train", key], value)
    elastic.configure(["defaults", "ray", "num_workers"], {"min": 1, "max": 2})
    fixed.configure(["defaults", "ray", "address"], "local")
    done = run(fixed)
    assert done.returncode == 0, done.stderr
    status, printed = Workflow(elastic, nodes).run(AT, lambda: nodes.kill("b"))
    assert status == 0, printed
    record = json.loads((elastic.folder / "results/runs/only/train.json").read_text())
    assert record["resumed_from"] > 0
    assert record["num_workers"] == 1
    ours, theirs = losses(elastic), losses(fixed)
    assert list(ours) == list(theirs)
    assert list(ours.values()) == pytest.approx(list(theirs.values()), rel=1e-5)
