"""A workflow that is killed goes on by the same command and ends with the same bytes."""

import hashlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
from project import Project

STEPS = 400


def prepare(folder: Path) -> Project:
    project = Project.create(folder)
    project.configure(["runs"], {"only": {"model": "tiny", "dataset": "functions"}})
    project.configure(["defaults", "train", "max_steps"], STEPS)
    project.configure(["defaults", "train", "save_steps"], 20)
    return project


def weights(project: Project) -> str:
    path = project.folder / "results/runs/only/model/model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def kill_all(root: subprocess.Popen[str]) -> None:
    """SIGKILL to a process and all that it has started, Ray's processes among them."""
    family = [psutil.Process(root.pid), *psutil.Process(root.pid).children(recursive=True)]
    for process in family:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(family)


def test_ends_with_the_bytes_of_an_undisturbed_run(tmp_path: Path) -> None:
    undisturbed, killed = prepare(tmp_path / "undisturbed"), prepare(tmp_path / "killed")
    assert undisturbed.snakemake("finetune", "--cores", "8").returncode == 0

    with subprocess.Popen(
        ["snakemake", "finetune", "--cores", "8"],
        cwd=killed.folder,
        env=killed.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as workflow:
        assert workflow.stderr is not None
        for line in workflow.stderr:
            if (told := re.match(r"only  step (\d+)/", line)) and int(told[1]) > STEPS // 4:
                kill_all(workflow)
                break
    assert not (killed.folder / "results/runs/only/train.json").exists()

    again = killed.snakemake("finetune", "--cores", "8")
    assert again.returncode == 0, again.stderr
    record = json.loads((killed.folder / "results/runs/only/train.json").read_text())
    assert 0 < record["resumed_from"] < STEPS
    assert weights(killed) == weights(undisturbed)
    history = (killed.folder / "results/runs/only/history.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in history if '"loss"' in line]
    assert steps == list(range(1, STEPS + 1))
