"""Workflows that lose a process while they train, and what is left of them."""

import hashlib
import json
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from fleet import until
from project import ROOT, Project

STEPS, SAVE_STEPS = 400, 20
COMMAND = ("snakemake", "finetune", "--cores", "8")

Changes = dict[str, Any]


# A ResNet on scikit-learn's digits, augmented.
IMAGES: Changes = {
    "datasets": {"digits": {"source": "digits"}},
    "models": {
        "resnet": {
            "source": "scratch-vision",
            "classes_of": "digits",
            "image_size": 16,
            "resnet": {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8},
        }
    },
    "runs": {"only": {"model": "resnet", "dataset": "digits"}},
}
_LLAMA = {
    "source": "scratch",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
# A Llama that reads which module a function is from.
CLASSIFICATION: Changes = {
    "datasets": {"modules-of": {"source": "python-stdlib", "format": "classification"}},
    "models": {
        "reader": {
            **_LLAMA,
            "classes_of": "modules-of",
            "tokenizer": {"train_on": "modules-of", "vocab_size": 512},
        }
    },
    "runs": {"only": {"model": "reader", "dataset": "modules-of", "data": {"block_size": 64}}},
}
# One that reads which words are names.
TOKEN_CLASSIFICATION: Changes = json.loads(
    json.dumps(CLASSIFICATION).replace('"classification"', '"token-classification"')
)
# One that gives a function with its own body more.
REWARD: Changes = {
    "datasets": {"judged": {"source": "python-stdlib", "format": "reward"}},
    "models": {
        "judge": {
            **_LLAMA,
            "classes_of": "judged",
            "tokenizer": {"train_on": "judged", "vocab_size": 512},
        }
    },
    "runs": {
        "only": {
            "model": "judge",
            "dataset": "judged",
            "data": {"block_size": 64},
            "reward": {"center_rewards_coefficient": 0.01},
        }
    },
}


def prepare(folder: Path, changes: Changes, sections: Changes | None = None) -> Project:
    """A project with one run, whose data, base and rows are there.

    Args:
        folder: where it is made.
        changes: values by dotted path in `defaults`.
        sections: other sections of the config, such as the run's dataset and model.
    """
    project = Project.create(folder)
    project.configure(["runs"], {"only": {"model": "tiny", "dataset": "functions"}})
    for key, value in (sections or {}).items():
        project.configure([key], value)
    for key, value in {"train.max_steps": STEPS, "train.save_steps": SAVE_STEPS}.items():
        project.configure(["defaults", *key.split(".")], value)
    for key, value in changes.items():
        project.configure(["defaults", *key.split(".")], value)
    done = project.snakemake("data")
    assert done.returncode == 0, done.stderr
    return project


def environment(project: Project, **injected: Any) -> dict[str, str]:
    """That of a workflow whose rows are recorded, and with more injected."""
    whole = project.environment()
    injected = {"ledger": str(project.folder / "ledger.jsonl"), **injected}
    return whole | {
        "PYTHONPATH": f"{whole['PYTHONPATH']}:{ROOT / 'tests/injected'}",
        "INJECTED": json.dumps(injected),
    }


def run(project: Project, **injected: Any) -> subprocess.CompletedProcess[str]:
    """Run the workflow to its end."""
    return subprocess.run(
        COMMAND,
        cwd=project.folder,
        env=environment(project, **injected),
        capture_output=True,
        text=True,
        check=False,
    )


def run_and_signal(
    project: Project,
    victim: str,
    step: int,
    number: signal.Signals,
    name: str = "only",
    command: tuple[str, ...] = COMMAND,
) -> subprocess.CompletedProcess[str]:
    """Run the workflow, and send a signal to one of its processes once a step is done.

    Args:
        project: has no model yet.
        victim: a worker, the driver, the raylet, snakemake, everything that it has started, or
            the group of processes that a terminal sends Ctrl-C to.
        step: -1 for the moment at which the victim is there.
        number: the signal.
        name: of the run that is trained.
        command: the workflow's.
    """
    with subprocess.Popen(
        command,
        cwd=project.folder,
        env=environment(project),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as started:
        workflow = psutil.Process(started.pid)
        until(lambda: last_step(project, name) >= step and _VICTIMS[victim](workflow))
        for process in _VICTIMS[victim](workflow):
            # Of all that are killed, some end with another.
            with suppress(ProcessLookupError):
                os.kill(process, number)
        _, reported = started.communicate()
    return subprocess.CompletedProcess(command, started.returncode, "", reported)


def _in_family(is_it: Callable[[list[str]], bool]) -> Callable[[psutil.Process], list[int]]:
    def find(workflow: psutil.Process) -> list[int]:
        found = []
        for process in workflow.children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if is_it(process.cmdline() or [""]):
                    found.append(process.pid)
        # The one that was started last: a shell around a script comes before it.
        return sorted(found)[-1:]

    return find


# Processes by their command.
_VICTIMS: dict[str, Callable[[psutil.Process], list[int]]] = {
    "worker": _in_family(lambda command: command[0].startswith("ray::RayTrainWorker")),
    "driver": _in_family(lambda command: ".snakemake/scripts/" in command[-1]),
    "raylet": _in_family(lambda command: command[0].endswith("/raylet/raylet")),
    "snakemake": lambda workflow: [workflow.pid],
    "group": lambda workflow: [-workflow.pid],
    "everything": lambda workflow: [
        workflow.pid,
        *(process.pid for process in workflow.children(recursive=True)),
    ],
}


def last_step(project: Project, name: str) -> int:
    """The last step that the history of a run has; -1 before any."""
    found = list(project.folder.glob(f"results/state/{name}/*/history.jsonl"))
    lines = found[0].read_text().splitlines(keepends=True) if found else []
    steps = [json.loads(line)["step"] for line in lines if line.endswith("\n") and "loss" in line]
    return max(steps, default=-1)


def losses(project: Project, name: str = "only") -> dict[int, float]:
    """The training loss of each step in the history that came out."""
    lines = (project.folder / f"results/runs/{name}/history.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line}


def weights(project: Project, name: str = "only") -> str:
    """The SHA-256 of the model that came out."""
    path = project.folder / f"results/runs/{name}/model/model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rows_by_step(project: Project) -> dict[int, list[str]]:
    """Digests of the rows of each step, over all workers, as of the attempt that did it last."""
    last: dict[int, int] = {}
    rows: dict[tuple[int, int], list[str]] = {}
    for line in (project.folder / "ledger.jsonl").read_text().splitlines():
        process, rank, step, digests = json.loads(line)
        known = process in last
        assert step == last[process] + 1 if known else (rank, step - 1) in {*rows, (rank, -1)}, (
            "no worker skips a step, and none goes on where none was"
        )
        last[process] = step
        rows[rank, step] = digests
    whole: dict[int, list[str]] = defaultdict(list)
    for (_, step), digests in sorted(rows.items()):
        whole[step] += digests
    return dict(whole)


def check_equal(project: Project, undisturbed: Project) -> None:
    """Hold a run against an undisturbed one: weights, losses, and the rows of each step."""
    assert weights(project) == weights(undisturbed)
    assert losses(project) == losses(undisturbed)
    assert rows_by_step(project) == rows_by_step(undisturbed)
