"""What datasets and base models depend on, and their modality; the task of a run."""

from glob import glob
from operator import attrgetter
from pathlib import Path
from typing import Any

from moray.config.formats import FORMATS, TaskName, source_module
from moray.config.schema import (
    Experiment,
    HubModel,
    PathModel,
    ScratchModel,
    result_keys,
)
from moray.config.tasks import TASKS, Modality
from moray.errors import UserError

SPLITS = ("train", "validation", "test")


def dataset_config(experiment: Experiment, dataset: str) -> dict[str, Any]:
    """What a dataset's rows depend on."""
    section = experiment.datasets[dataset]
    config = result_keys(section)
    if state := section.state(f"datasets.{dataset}"):
        config["state"] = state
    return dict(sorted(config.items()))


def dataset_files(experiment: Experiment, dataset: str) -> dict[str, list[str]]:
    """The user's files that each split of a dataset is read from.

    Raises:
        UserError: if a path or glob matches no file.
    """
    return {
        str(split): list(
            dict.fromkeys(
                file
                for key, paths in keys.items()
                for path in paths
                for file in _files(path, f"datasets.{dataset}.{key}")
            )
        )
        for split, keys in experiment.datasets[dataset].files.items()
    }


def _files(path: str, key: str) -> list[str]:
    matches = sorted(match for match in glob(path, recursive=True) if Path(match).is_file())
    if not matches:
        raise UserError(
            key,
            f"no file matches {path}",
            "check the path; it is relative to the working directory",
        )
    return [without_braces(match, key) for match in matches]


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


def source_of(experiment: Experiment, dataset: str) -> str:
    """The module of a dataset's source, which is imported by this name."""
    section = experiment.datasets[dataset]
    return source_module(section.source, section.format)


def modality_of_dataset(experiment: Experiment, dataset: str) -> Modality:
    """The modality of a dataset, which follows from its format."""
    return TASKS[FORMATS[experiment.datasets[dataset].format].task].modality


def modality_of_model(experiment: Experiment, model: str) -> Modality:
    """The modality of a base model."""
    section = experiment.models[model]
    return "text" if getattr(section, "classes_of", None) is None else "images"


def modality(experiment: Experiment, run: str) -> Modality:
    """The modality of a run, which is that of its datasets."""
    return TASKS[task(experiment, run)].modality


def task(experiment: Experiment, run: str) -> TaskName:
    """The task of a run, which follows from the format of its datasets."""
    first = next(iter(experiment.runs[run].datasets))
    return FORMATS[experiment.datasets[first].format].task


def section_of_task(experiment: Experiment, run: str) -> dict[str, dict[str, Any]]:
    """The section of a run's config that only its task reads, by its name; empty without one."""
    facts = TASKS[task(experiment, run)]
    if not facts.section_path:
        return {}
    return {facts.section_name: result_keys(attrgetter(facts.section_path)(experiment.runs[run]))}
