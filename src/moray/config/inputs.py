"""The user's files that stages read."""

from glob import glob
from pathlib import Path

from moray.config.layout import workers_are_here
from moray.config.schema.experiment import Experiment
from moray.config.schema.models import PathModel, ScratchModel
from moray.errors import UserError


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
    return [_without_braces(match, key) for match in matches]


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
        return [*described, *(_without_braces(name, f"models.{model}.path") for name in names)]
    return described


def _description(dataset: str) -> str:
    return f"results/datasets/{dataset}/dataset.json"


def benchmark_files(experiment: Experiment, run: str) -> list[str]:
    """The files in the folder of a run's own benchmark tasks.

    Raises:
        UserError: if the folder doesn't exist, or if workers wouldn't see it.
    """
    whole, key = experiment.runs[run], f"runs.{run}.benchmarks.include_path"
    section = whole.benchmarks
    if not section.tasks or section.include_path is None:
        return []
    if whole.ray.in_object_store and not workers_are_here(whole.ray, whole.train.launcher):
        raise UserError(
            key,
            "task files need a folder that all nodes share, but ray.storage_path is a URL",
            "set ray.storage_path to a folder that all nodes share",
        )
    folder = Path(section.include_path)
    if not folder.is_dir():
        raise UserError(
            key,
            f"got {folder}, expected a folder with task files",
            "check the path; it is relative to the working directory",
        )
    # Python writes the last ones when it runs code of a task.
    files = [
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return sorted(_without_braces(str(path), key) for path in files)


def _without_braces(path: str, key: str) -> str:
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
