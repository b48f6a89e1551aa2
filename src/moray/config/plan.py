"""What each stage's result depends on, and where it lies: the facts that the rules are made of.

Each function that ends in `_config` gives the one param `cfg` of a rule: builtins with sorted
keys, and only the keys that the result depends on, because the workflow re-runs a stage when
its `cfg` prints differently.
"""

import hashlib
import json
import math
import platform
from glob import glob
from pathlib import Path
from typing import Any

from moray.config.schema import (
    Experiment,
    LocalFiles,
    PathModel,
    PythonStdlib,
    RunRef,
    ScratchModel,
    execution_keys,
    result_keys,
)
from moray.errors import UserError

SPLITS = ("train", "validation", "test")


def dataset_config(experiment: Experiment, dataset: str) -> dict[str, Any]:
    """What a dataset's rows depend on."""
    section = experiment.datasets[dataset]
    config = result_keys(section)
    if isinstance(section, PythonStdlib):
        config["python"] = platform.python_version()
    return dict(sorted(config.items()))


def dataset_files(experiment: Experiment, dataset: str) -> list[str]:
    """The user's files that a dataset is read from.

    Raises:
        UserError: if a path or glob matches no file.
    """
    section = experiment.datasets[dataset]
    if not isinstance(section, LocalFiles):
        return []
    files: list[str] = []
    for pattern in section.patterns:
        matches = sorted(match for match in glob(pattern, recursive=True) if Path(match).is_file())
        if not matches:
            raise UserError(
                f"datasets.{dataset}.path",
                f"got {pattern}, expected a file or a glob that matches files",
                "check the path, which is relative to the working directory",
            )
        files += matches
    return list(dict.fromkeys(files))


def model_config(experiment: Experiment, model: str) -> dict[str, Any]:
    """What a base model depends on."""
    return result_keys(experiment.models[model])


def model_files(experiment: Experiment, model: str) -> list[str]:
    """The files that a base model is made from: the user's folder, or the dataset to learn from.

    Raises:
        UserError: if the user's folder is not there.
    """
    section = experiment.models[model]
    if isinstance(section, ScratchModel):
        folder = f"results/datasets/{section.tokenizer.train_on}"
        return [f"{folder}/dataset.json"]
    if isinstance(section, PathModel):
        if not Path(section.path, "config.json").is_file():
            raise UserError(
                f"models.{model}.path",
                f"got {section.path}, expected a folder with a config.json",
                "check the path, which is relative to the working directory",
            )
        return sorted(str(path) for path in Path(section.path).iterdir() if path.is_file())
    return []


def store_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's tokens depend on, besides its dataset's rows and its tokenizer."""
    section = experiment.runs[run]
    dataset = experiment.datasets[section.dataset]
    return dict(sorted({"format": dataset.format, **result_keys(section.data)}.items()))


def store_name(experiment: Experiment, run: str) -> str:
    """Name of a run's token store; runs with equal data settings share one."""
    dataset, model = experiment.runs[run].dataset, experiment.base_model(run)
    identity = [dataset, model, store_config(experiment, run)]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{dataset}-{model}-{digest[:8]}"


def start_folder(experiment: Experiment, run: str) -> str:
    """The Hugging Face folder that a run starts from."""
    model = experiment.runs[run].model
    return (
        f"results/runs/{model.run}/model"
        if isinstance(model, RunRef)
        else f"results/models/{model}"
    )


def train_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's weights depend on, besides tokens and start."""
    return result_keys(experiment.runs[run].train)


def train_execution(experiment: Experiment, run: str) -> dict[str, Any]:
    """How a run is trained, without effect on its result."""
    section = experiment.runs[run]
    return {"ray": execution_keys(section.ray), "train": execution_keys(section.train)}


def export_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What the model card says of a run, besides what training recorded."""
    section = experiment.runs[run]
    return {"dataset": section.dataset, "run": run, "start": start_folder(experiment, run)}


def evaluate_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's scores depend on, besides models and tokens."""
    return result_keys(experiment.runs[run].evaluate)


def generate_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's samples depend on, besides models and prompts."""
    section = experiment.runs[run]
    dataset = experiment.datasets[section.dataset]
    code = isinstance(dataset, PythonStdlib)
    config = {"format": dataset.format, "is_python": code, **result_keys(section.generate)}
    return dict(sorted(config.items()))


def train_threads(experiment: Experiment, run: str) -> int:
    """CPUs that a run's workers take on this machine."""
    ray = experiment.runs[run].ray
    return math.ceil(ray.num_workers * ray.resources_per_worker.get("CPU", 1))


def evaluate_execution(experiment: Experiment, run: str) -> dict[str, Any]:
    """How a run is scored, without effect on its scores."""
    return execution_keys(experiment.runs[run].evaluate)
