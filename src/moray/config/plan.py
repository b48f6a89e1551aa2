"""What each stage's result depends on and where it is stored, for the workflow's rules.

Each function that ends in `_config` returns the param `cfg` of a rule: builtins with sorted keys,
and only the keys that the result depends on, because the workflow re-runs a stage when its `cfg`
prints differently.
"""

import hashlib
import json
import math
import platform
from glob import glob
from pathlib import Path
from typing import Any, Literal

from moray.config.formats import CHAT_FORMATS, TASKS
from moray.config.image_files import digest_of_listing, idx_files
from moray.config.layout import Layout, for_stage, lay_out_here, workers_are_here
from moray.config.schema import (
    BestRef,
    Dataset,
    Experiment,
    HubModel,
    Idx,
    ImageFolder,
    LocalFiles,
    PathModel,
    PythonStdlib,
    RunRef,
    ScratchModel,
    execution_keys,
    result_keys,
)
from moray.config.splits import paths_by_split
from moray.errors import UserError

SPLITS = ("train", "validation", "test")
# Where datasets are prepared to, by task.
_FOLDERS = {
    "language": "results/tokens",
    "preference": "results/tokens",
    "images": "results/pixels",
}

Stage = Literal["evaluate", "generate", "benchmarks"]

# Threads of a single process on the CPU; Snakemake lowers it to the available cores.
_THREADS_OF_ONE = 8


def dataset_config(experiment: Experiment, dataset: str) -> dict[str, Any]:
    """What a dataset's rows depend on."""
    section = experiment.datasets[dataset]
    config = result_keys(section)
    if isinstance(section, PythonStdlib):
        config["python"] = platform.python_version()
    if isinstance(section, ImageFolder):
        # Too many to be the input files of a rule.
        config["listing"] = digest_of_listing(section, dataset)
    return dict(sorted(config.items()))


def dataset_files(experiment: Experiment, dataset: str) -> dict[str, list[str]]:
    """The user's files that each split of a dataset is read from.

    Raises:
        UserError: if a path or glob matches no file.
    """
    section = experiment.datasets[dataset]
    if isinstance(section, Idx):
        return {
            split: [_files(path, dataset, f"{split}.{key}")[0] for key, path in files.items()]
            for split, files in idx_files(section).items()
        }
    if not isinstance(section, LocalFiles):
        return {}
    return {
        str(split): list(dict.fromkeys(file for path in paths for file in _files(path, dataset)))
        for split, paths in paths_by_split(section.path).items()
    }


def _files(path: str, dataset: str, key: str = "path") -> list[str]:
    matches = sorted(match for match in glob(path, recursive=True) if Path(match).is_file())
    if not matches:
        raise UserError(
            f"datasets.{dataset}.{key}",
            f"no file matches {path}",
            "check the path; it is relative to the working directory",
        )
    return [without_braces(match, f"datasets.{dataset}.{key}") for match in matches]


def without_braces(path: str, key: str) -> str:
    """The path of a rule's input file.

    Raises:
        UserError: if Snakemake would read a part of it as a wildcard.
    """
    if {"{", "}"} & set(path):
        raise UserError(
            key,
            f"{path} contains braces, which Snakemake reads as wildcards",
            "rename the file",
        )
    return path


def model_config(experiment: Experiment, model: str) -> dict[str, Any]:
    """What a base model depends on."""
    section = experiment.models[model]
    config = result_keys(section)
    if isinstance(section, PathModel | HubModel) and section.classes_of is None:
        return {key: config[key] for key in config if key not in ("classes_of", "seed")}
    return config


def model_files(experiment: Experiment, model: str) -> list[str]:
    """The files that a base model is made from: the user's folder, or the tokenizer's dataset.

    For images, the dataset's description comes first.

    Raises:
        UserError: if the user's folder has no `config.json`.
    """
    section = experiment.models[model]
    if isinstance(section, ScratchModel):
        return [_description(section.tokenizer.train_on)]
    described = [_description(section.classes_of)] if section.classes_of else []
    if isinstance(section, PathModel):
        if not Path(section.path, "config.json").is_file():
            raise UserError(
                f"models.{model}.path",
                f"got {section.path}, expected a folder with a config.json",
                "check the path; it is relative to the working directory",
            )
        # A tokenizer with several templates keeps the additional ones in this folder.
        found = [*Path(section.path).iterdir()]
        found += Path(section.path).glob("additional_chat_templates/*.jinja")
        names = sorted(str(path) for path in found if path.is_file())
        return [*described, *(without_braces(name, f"models.{model}.path") for name in names)]
    return described


def _description(dataset: str) -> str:
    return f"results/datasets/{dataset}/dataset.json"


def task_of_dataset(experiment: Experiment, dataset: str) -> str:
    """The task of a dataset, which follows from its format."""
    return TASKS[experiment.datasets[dataset].format]


def task_of_model(experiment: Experiment, model: str) -> str:
    """The task of a base model."""
    section = experiment.models[model]
    return "language" if getattr(section, "classes_of", None) is None else "images"


def task(experiment: Experiment, run: str) -> str:
    """The task of a run, which follows from the format of its datasets."""
    return task_of_dataset(experiment, next(iter(experiment.runs[run].datasets)))


def store_config(experiment: Experiment, run: str, name: str) -> dict[str, Any]:
    """What a run's rows of a dataset depend on, besides it and the tokenizer or processor."""
    section, dataset = experiment.runs[run], experiment.datasets[name]
    if task(experiment, run) == "images":
        return {"format": dataset.format}
    config = {"format": dataset.format, **result_keys(section.data)}
    del config["augmentation"]
    config["chat_template"] = chat_template(experiment, run) if _is_chat(dataset) else None
    config["mask_history"] = section.data.mask_history and dataset.format == "messages"
    return dict(sorted(config.items()))


def chat_template(experiment: Experiment, run: str) -> str | None:
    """The chat template of a run's model; None for the tokenizer's own.

    A run on conversations uses the template of its own section. Other runs, and runs without a
    template, use that of the run they start from.
    """
    section = experiment.runs[run]
    datasets = [experiment.datasets[name] for name in section.datasets]
    own = section.data.chat_template if any(map(_is_chat, datasets)) else None
    if own is None and (starts := experiment.starts(run)):
        return chat_template(experiment, starts[0])
    return own


def _is_chat(dataset: Dataset) -> bool:
    return dataset.format in CHAT_FORMATS


def store_name(experiment: Experiment, run: str, dataset: str) -> str:
    """Name of a run's store of a dataset; runs with equal data settings share one."""
    model = experiment.base_model(run)
    identity = [dataset, model, store_config(experiment, run, dataset)]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{dataset}-{model}-{digest[:8]}"


def reference_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a preference run's reference depends on, besides its start and its tokens."""
    return {"precision": experiment.runs[run].evaluate.precision}


def reference_name(experiment: Experiment, run: str) -> str:
    """Name of a run's reference; runs with the same start, tokens and precision share one."""
    start, (dataset,) = start_folder(experiment, run), experiment.runs[run].datasets
    identity = [start, store_name(experiment, run, dataset), reference_config(experiment, run)]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{dataset}-{_name_of_start(experiment, run)}-{digest[:8]}"


def _name_of_start(experiment: Experiment, run: str) -> str:
    model = experiment.runs[run].model
    if isinstance(model, BestRef):
        return model.best
    return model.run if isinstance(model, RunRef) else model


def prepared_folders(experiment: Experiment, run: str) -> list[str]:
    """The stores that a run's datasets are prepared into, in their order."""
    folder = _FOLDERS[task(experiment, run)]
    names = (store_name(experiment, run, name) for name in experiment.runs[run].datasets)
    return [f"{folder}/{name}" for name in names]


def store_folders(experiment: Experiment, run: str) -> list[str]:
    """The stores of the rows that a run trains on, in the order of its datasets."""
    if task(experiment, run) == "preference":
        return [f"results/reference/{reference_name(experiment, run)}"]
    return prepared_folders(experiment, run)


def start_folder(experiment: Experiment, run: str) -> str:
    """The Hugging Face folder that a run starts from."""
    model, name = experiment.runs[run].model, _name_of_start(experiment, run)
    if isinstance(model, BestRef):
        return f"results/best/{name}/model"
    return f"results/runs/{name}/model" if isinstance(model, RunRef) else f"results/models/{name}"


def start_dependencies(experiment: Experiment, run: str) -> list[str]:
    """The folders that are needed to load the start of a run, besides its own.

    An adapter exported without its base needs the start of its own run, and what that needs.
    """
    folders = [
        folder
        for start in experiment.starts(run)
        if exports_adapter(experiment, start)
        for folder in (start_folder(experiment, start), *start_dependencies(experiment, start))
    ]
    return list(dict.fromkeys(folders))


def exports_adapter(experiment: Experiment, run: str) -> bool:
    """Whether a run exports only its adapter."""
    section = experiment.runs[run]
    return section.adapter is not None and not section.export.merge_adapter


def train_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's weights depend on, besides its rows and its start."""
    section = experiment.runs[run]
    adapter = section.adapter and result_keys(section.adapter)
    config = {
        "adapter": adapter,
        "datasets": section.datasets,
        "train": result_keys(section.train),
    }
    if task(experiment, run) == "preference":
        config["preference"] = result_keys(section.preference)
    if task(experiment, run) == "images":
        config["augmentation"] = result_keys(section.data.augmentation)
    return dict(sorted(config.items()))


def train_execution(experiment: Experiment, run: str) -> dict[str, Any]:
    """The settings of a run's training that don't change its result."""
    section = experiment.runs[run]
    names = ("data", "ray", "train")
    sections = {name: execution_keys(getattr(section, name)) for name in names}
    return {**sections, "tracking": list(section.tracking)}


def export_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What the model card says about a run, besides what training recorded."""
    section = experiment.runs[run]
    of_text = task(experiment, run) != "images"
    template = {"chat_template": chat_template(experiment, run)} if of_text else {}
    return {
        **template,
        "datasets": section.datasets,
        **result_keys(section.export),
        "run": run,
        "start": start_folder(experiment, run),
    }


def evaluate_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's scores depend on, besides models and tokens."""
    section = experiment.runs[run]
    config = {"datasets": list(section.datasets), **result_keys(section.evaluate)}
    if task(experiment, run) == "preference":
        config["preference"] = result_keys(section.preference)
    return dict(sorted(config.items()))


def generate_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's samples depend on, besides models and prompts."""
    section = experiment.runs[run]
    datasets = {name: store_config(experiment, run, name) for name in section.datasets}
    config = {"datasets": datasets, **result_keys(section.generate)}
    if section.generate.metrics:
        config |= interval_config(experiment, run)
    return dict(sorted(config.items()))


def interval_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What the intervals of a run's figures depend on."""
    section = experiment.runs[run].evaluate
    return {"bootstrap_samples": section.bootstrap_samples, "confidence": section.confidence}


def push_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """Where a run's model is uploaded to, for a run that says it."""
    section = experiment.runs[run].push
    assert section
    return dict(sorted({"run": run, **result_keys(section)}.items()))


def predict_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's predictions depend on, besides models and images."""
    section = experiment.runs[run].generate
    return {"num_samples": section.num_samples, "precision": section.precision}


def train_threads(experiment: Experiment, run: str) -> int:
    """Cores of this machine that a run's workers use; 1 if they are on a cluster."""
    if not _is_here(experiment, run):
        return 1
    cores = experiment.runs[run].ray.resources_per_worker.get("CPU", 1)
    return math.ceil(_train_layout(experiment, run).num_workers * cores)


def train_gpus(experiment: Experiment, run: str) -> int:
    """GPUs of this machine that a run's workers use."""
    return _train_layout(experiment, run).num_gpus if _is_here(experiment, run) else 0


def _is_here(experiment: Experiment, run: str) -> bool:
    section = experiment.runs[run]
    return workers_are_here(section.ray, section.train.launcher)


def _train_layout(experiment: Experiment, run: str) -> Layout:
    section = experiment.runs[run]
    return lay_out_here(section.ray, section.train.global_batch_size)


def evaluation_execution(experiment: Experiment, run: str, stage: Stage) -> dict[str, Any]:
    """The settings of evaluating or generating that don't change the result."""
    section = experiment.runs[run]
    return {
        stage: execution_keys(getattr(section, stage)),
        "launcher": section.train.launcher,
        "ray": execution_keys(section.ray),
        "stall_timeout": section.train.stall_timeout,
    }


def evaluation_threads(experiment: Experiment, run: str, stage: Stage) -> int:
    """Cores of this machine that evaluating or generating uses; 1 if it is done on a cluster."""
    if not _is_here(experiment, run):
        return 1
    layout = _evaluation_layout(experiment, run, stage)
    if layout.num_workers == 1 and not layout.use_gpu:
        return _THREADS_OF_ONE
    cores = experiment.runs[run].ray.resources_per_worker.get("CPU", 1)
    return math.ceil(layout.num_workers * cores)


def evaluation_gpus(experiment: Experiment, run: str, stage: Stage) -> int:
    """GPUs of this machine that evaluating or generating uses."""
    here = _is_here(experiment, run)
    return _evaluation_layout(experiment, run, stage).num_gpus if here else 0


def _evaluation_layout(experiment: Experiment, run: str, stage: Stage) -> Layout:
    section = experiment.runs[run]
    return lay_out_here(for_stage(section.ray, getattr(section, stage).num_workers))
