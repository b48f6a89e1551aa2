"""Jobs of a few steps for tests."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_stage import stage_command

from moray.config.schema.base import execution_keys, result_keys
from moray.config.schema.sections import Ray
from moray.config.schema.train import Adapter, Train
from moray.storage.interface import folder_of, path_of
from moray.train.driver import run_training
from moray.train.spec import Part, RunSpec

Make = Callable[..., RunSpec]


def job_maker(small: Path, folder: Path, store: str = "tokens", **sections: Any) -> Make:
    """A function that makes jobs in a folder: 8 steps in fp32, and settings of the test's own.

    Args:
        small: folder with `model` and a store.
        folder: for their work.
        store: name of the store.
        sections: the sections that only its task reads.
    """

    def make(work: str = "work", adapter: Adapter | None = None, **settings: Any) -> RunSpec:
        train = {
            "max_steps": 8,
            "global_batch_size": 8,
            "learning_rate": 1e-2,
            "precision": "fp32",
            "logging_steps": 1,
            "eval_steps": 4,
            "save_steps": 2,
            **settings,
        }
        (folder / work).mkdir(exist_ok=True)
        return RunSpec(
            "name",
            start=small / "model",
            parts=(Part("data", small / store),),
            settings=Train(**train),
            adapter=adapter,
            task_settings=sections,
            ray=Ray(num_workers=1),
            work=folder / work,
            cache=folder / "compiled",
        )

    return make


def without_later(make: Make, job: RunSpec, name: str, step: int, **settings: Any) -> RunSpec:
    """A job with another's checkpoint of a step, and none later; both save every 2 of 8 steps."""
    keys = {} if job.adapter is None else {"adapter": job.adapter}
    other = make(name, **keys, **settings)
    shutil.copytree(folder_of(job.work), folder_of(other.work), dirs_exist_ok=True)
    for later in range(step + 2, 10, 2):
        shutil.rmtree(path_of(folder_of(other.work), later))
    shutil.copy(job.work / "history.jsonl", other.work)
    return other


def train_run(
    job: RunSpec, small: Path, output: Path, settings: Train, code: str = "", **ray: Any
) -> None:
    """Train a run named `name` as its stage does, with the start and tokens of `small`.

    Args:
        job: its work folder is where the run's state lies.
        small: folder with `model` and `tokens`.
        output: folder for the results, which isn't there yet.
        settings: the `train` section.
        code: stands for the code that the result depends on.
        ray: keys of the `ray` section.
    """
    output.mkdir()
    spec = RunSpec(
        "name",
        small / "model",
        (Part("data", small / "tokens"),),
        settings,
        adapter=job.adapter,
        task_settings=job.task_settings,
        ray=Ray(storage_path=str(job.work), **ray),
        code=code,
    )
    run_training(spec, output)


def execution_of(
    stage: str, num_workers: int = 1, batch_size: int = 4, launcher: str = "torchrun"
) -> dict[str, Any]:
    """How a stage that evaluates or generates is executed."""
    return {
        stage: {"num_workers": num_workers, "batch_size": batch_size},
        "launcher": launcher,
        "proofs": "refuse",
        "ray": {},
        "stall_timeout": 600.0,
    }


def training_command(
    start: Path,
    store: Path,
    output: Path,
    settings: Train,
    ray: Ray,
    loader: str = "memory",
    tracking: list[str] | None = None,
) -> list[str]:
    """The command that trains a run named `name` in a process of its own."""
    result = {"adapter": None, "datasets": {"data": 1.0}, "train": result_keys(settings)}
    execution = {
        "data": {"loader": loader},
        "proofs": "refuse",
        "ray": execution_keys(ray),
        "tracking": tracking or [],
        "train": execution_keys(settings),
    }
    return stage_command(
        "finetune",
        run="name",
        start=start,
        stores=[store],
        output=output,
        cfg=result,
        execution=execution,
    )
