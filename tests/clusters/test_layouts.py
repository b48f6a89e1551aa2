"""One run, on one machine or on two nodes: the same losses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters.driver import PATHS, Driven, drive, on_cluster
from clusters.nodes import Nodes, two_nodes
from fleet import losses
from jobs import Make, job_maker

from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp2": {"strategy": "fsdp2"},
    "zero-2": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 2}},
}


@pytest.fixture(scope="module")
def make_job(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    return job_maker(small, tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes with room for two workers each."""
    with two_nodes(tmp_path_factory.mktemp("nodes")) as made:
        for name in ("a", "b"):
            made.start(name, cpus=2, paths=PATHS)
        yield made


@pytest.fixture(scope="module")
def expected(make_job: Make, alone: Worker) -> list[float]:
    """What a single process on one machine gives."""
    job = make_job("alone", global_batch_size=16)
    train(job, alone)
    return losses(job)


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param(2, marks=pytest.mark.release),
        # They don't divide the rows of a step evenly.
        pytest.param(3, marks=pytest.mark.release),
        pytest.param(4, marks=pytest.mark.release),
    ],
)
def test_losses_on_two_nodes_are_those_of_a_single_process(
    workers: int, nodes: Nodes, make_job: Make, expected: list[float], tmp_path: Path
) -> None:
    jobs: dict[str, RunSpec] = {
        engine: make_job(f"{engine} {workers}", global_batch_size=16, micro_batch_size=2, **keys)
        for engine, keys in ENGINES.items()
    }
    # Two workers have a node each; more share them.
    ray = on_cluster(num_workers=workers, resources_per_worker={"CPU": 2 if workers == 2 else 1})
    done = drive(nodes, Driven(tmp_path / "shared", ray, list(jobs.values())))
    assert done.returncode == 0, done.stderr
    for engine, job in jobs.items():
        assert losses(job) == pytest.approx(expected, rel=1e-5), engine
