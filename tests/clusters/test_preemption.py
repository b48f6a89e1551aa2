"""A node that is preempted with a notice: nothing is lost, and it counts as no failure."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import check_same_bits
from clusters.driver import PATHS, Driven, drive, on_cluster
from clusters.nodes import ADDRESSES, Nodes, two_nodes
from fleet import train_all, train_and_record, until
from jobs import job_maker

from moray.background import in_thread
from moray.train.history import HISTORY, read_history
from moray.train.spec import RunSpec
from moray.workers.entry import Worker
from moray.workers.preemption import Notice

pytestmark = pytest.mark.release

# Seconds until the deadline.
SECONDS = 15
# Steps before the notice; the step that is saved for it, and the one after which the workers leave.
FEW, NOTICED, LEFT = 5, 6, 9


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as made:
        for name in ADDRESSES:
            made.start(name, paths=PATHS)
        yield made


def train_until_drained(jobs: list[RunSpec], worker: Worker) -> None:
    """Train a job on this worker; after a few steps, the second node is about to be preempted."""
    (job,) = jobs
    if _begins(job.work, worker):
        worker = replace(worker, notice=_timed(worker.notice))
        in_thread(lambda: _drain_after_steps(job))
    train_and_record(jobs, worker)


def wait_until_drained(jobs: list[RunSpec], worker: Worker) -> None:
    """Do nothing about a notice; once the workers are started again, all is done."""
    (job,) = jobs
    if _begins(job.work, worker):
        _drain_second_node()
        threading.Event().wait()


def _begins(folder: Path, worker: Worker) -> bool:
    """Whether this is the first attempt."""
    mark = folder / f"began-{worker.rank}"
    if is_first := not mark.exists():
        mark.touch()
    return is_first


def _timed(newest: Callable[[], Notice | None]) -> Callable[[], Notice | None]:
    """A source of notices that is asked at each step, so that steps wait for what is to happen."""
    steps = iter(range(LEFT))

    def notice() -> Notice | None:
        step = next(steps)
        if step < FEW:
            return None
        until(newest)
        found = newest()
        assert found
        deadline = found.deadline
        assert deadline
        if step == LEFT - 1:
            # The last seconds are kept for leaving.
            until(lambda: time.time() > deadline - 5)
        return found

    return notice


def _drain_after_steps(job: RunSpec) -> None:
    history = job.work / HISTORY
    until(lambda: history.exists() and any(line["step"] >= FEW for line in read_history(history)))
    _drain_second_node()


def _drain_second_node() -> None:
    """Tell Ray, on that node, that it will be preempted, as the autoscaler of a cloud does."""
    import ray.util
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    if ray.util.get_node_ip_address() != ADDRESSES["b"]:
        return
    context = ray.get_runtime_context()
    accepted, why = ray._raylet.GcsClient(address=context.gcs_address).drain_node(
        context.get_node_id(),
        DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        "test",
        int(1000 * (time.time() + SECONDS)),
    )
    assert accepted, why


def drive_and_replace(nodes: Nodes, driven: Driven) -> None:
    """Run a driver; once Ray has ended on the second node, another one joins in its place."""
    driver = in_thread(lambda: drive(nodes, driven))
    until(lambda: driver.done() or "/raylet/raylet" not in str(nodes.processes("b")))
    # One that reads logs.
    nodes.kill("b")
    nodes.start("b", paths=PATHS)
    done = driver.result()
    assert done.returncode == 0, done.stderr


def test_a_training_leaves_a_node_before_its_deadline_and_loses_no_step(
    nodes: Nodes, small: Path, tmp_path: Path
) -> None:
    (tmp_path / "jobs").mkdir()
    make = job_maker(small, tmp_path / "jobs")
    ours, undisturbed = (
        make(name, max_steps=20, save_steps=20, eval_steps=20) for name in ("ours", "undisturbed")
    )
    ray = on_cluster(max_failures=0)
    drive_and_replace(nodes, Driven(tmp_path / "shared", ray, [ours], train_until_drained))
    train_all([undisturbed], 2, "torchrun", tmp_path / "alone")
    check_same_bits(ours, undisturbed)

    noticed, left = (
        line
        for line in read_history(ours.work / HISTORY)
        if f"node {ADDRESSES['b']}" in line.get("note", "")
    )
    assert re.fullmatch(
        rf"node {ADDRESSES['b']} will be preempted at \d\d:\d\d:\d\d: saved step {NOTICED}",
        noticed["note"],
    )
    assert left["note"] == (
        f"saved step {LEFT}, leaving node {ADDRESSES['b']}: the workers start again elsewhere"
    )
    facts = json.loads((ours.work / "facts-0.json").read_text())
    assert facts["resumed_from"] == LEFT


def test_workers_that_stay_until_the_deadline_are_started_again_without_a_failure(
    nodes: Nodes, small: Path, tmp_path: Path
) -> None:
    (tmp_path / "jobs").mkdir()
    job = job_maker(small, tmp_path / "jobs")()
    ray = on_cluster(max_failures=0)
    drive_and_replace(nodes, Driven(tmp_path / "shared", ray, [job], wait_until_drained))
