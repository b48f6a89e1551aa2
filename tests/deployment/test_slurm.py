"""The workflow in an allocation of two nodes, of a real Slurm on this machine."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment.daemons import until
from deployment.slurm import Slurm, slurm
from faults.workflows import check_equal, environment, last_step, prepare
from project import ROOT, Project

SUBMIT = ("sbatch", "--parsable", "--nodes=2", "--cpus-per-task=1", "deploy/slurm/moray.sbatch")
STEPS = 800
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm") / "slurm") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def prepared(cluster: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose rows are there, so that allocations begin with training."""
    changes = {"ray.num_workers": 2, "train.max_steps": STEPS}
    project = prepare(tmp_path_factory.mktemp("workflow") / "project", changes)
    shutil.copytree(ROOT / "deploy", project.folder / "deploy")
    return project


def _copy(project: Project, folder: Path) -> Project:
    return Project(shutil.copytree(project.folder, folder))


def _submit(cluster: Slurm, project: Project) -> str:
    return cluster.run(*SUBMIT, "finetune", folder=project.folder, **environment(project))


def _log(project: Project) -> str:
    return "".join(path.read_text() for path in project.folder.glob("moray-*.log"))


def _train_until(cluster: Slurm, job: str, project: Project, step: int) -> None:
    """Wait until a running job has done a step."""

    def reached() -> bool:
        state = cluster.state(job)
        return state in ENDED or (state == "RUNNING" and last_step(project, "only") >= step)

    until(reached)
    assert last_step(project, "only") < STEPS, "the job ended before it was interrupted"


def _start_again(cluster: Slurm, job: str) -> None:
    """Start a requeued job, which Slurm would hold for two minutes."""
    cluster.wait(job, "PENDING")
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")


@pytest.mark.release
def test_an_interrupted_job_ends_with_the_model_of_an_undisturbed_one(
    cluster: Slurm, prepared: Project, tmp_path: Path
) -> None:
    undisturbed = _copy(prepared, tmp_path / "undisturbed")
    job = _submit(cluster, undisturbed)
    assert cluster.wait(job, *ENDED) == "COMPLETED", _log(undisturbed)

    project = _copy(prepared, tmp_path / "interrupted")
    job = _submit(cluster, project)
    _train_until(cluster, job, project, 100)
    # What Slurm sends before the time limit and at pre-emption.
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    _start_again(cluster, job)
    saved = last_step(project, "only")
    assert f"{saved:08d}" in {
        path.name.removeprefix("step-")
        for path in project.folder.glob("results/state/only/*/checkpoints/step-*")
    }
    _train_until(cluster, job, project, saved + 50)
    # What pre-emption does without a warning.
    cluster.run("scontrol", "requeue", job)
    _start_again(cluster, job)
    _train_until(cluster, job, project, last_step(project, "only") + 50)
    cluster.run("scancel", job)
    assert cluster.wait(job, *ENDED) == "CANCELLED"
    job = _submit(cluster, project)
    assert cluster.wait(job, *ENDED) == "COMPLETED", _log(project)

    check_equal(project, undisturbed)
