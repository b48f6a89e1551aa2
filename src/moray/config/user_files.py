"""The user's files that are inputs of the workflow's rules."""

from pathlib import Path

from moray.config.input_files import endings_of, input_file, input_files
from moray.config.inputs import CHECK_PATH
from moray.config.layout import workers_are_here
from moray.config.schema.experiment import Experiment
from moray.config.schema.models import HubModel, PathModel, RunModel, ScratchModel
from moray.errors import UserError

# Of an adapter, as PEFT writes it.
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def dataset_files(experiment: Experiment, dataset: str) -> dict[str, list[str]]:
    """The user's files that each split of a dataset is read from.

    A path without wildcards may not be there yet, if another workflow's rule makes it.

    Raises:
        UserError: if a glob matches no file, or a folder has none.
    """
    section = experiment.datasets[dataset]
    return {
        str(split): list(
            dict.fromkeys(
                file
                for key, paths in keys.items()
                for path in paths
                for file in input_files(path, f"datasets.{dataset}.{key}", endings_of(section))
            )
        )
        for split, keys in section.files.items()
    }


def model_files(experiment: Experiment, model: str) -> list[str]:
    """The files that a base model is made from: the user's folder, or the tokenizer's dataset.

    The description of the dataset that a model names comes first.

    Raises:
        UserError: if the user's folder has no `config.json`, or a file of the adapter is missing.
    """
    section = experiment.models[model]
    if isinstance(section, ScratchModel):
        named = [section.classes_of] if section.classes_of else []
        return [_description(name) for name in dict.fromkeys([*named, section.tokenizer.train_on])]
    described = [_description(section.classes_of)] if section.classes_of else []
    if isinstance(section, RunModel):
        return [*described, f"results/runs/{section.run}/model/manifest.json"]
    if isinstance(section, PathModel):
        if not Path(section.path, "config.json").is_file():
            raise UserError(
                f"models.{model}.path",
                f"got {section.path}, expected a folder with a config.json",
                CHECK_PATH,
            )
        # A tokenizer with several templates keeps the additional ones in this folder.
        found = [*Path(section.path).iterdir()]
        found += Path(section.path).glob("additional_chat_templates/*.jinja")
        names = sorted(str(path) for path in found if path.is_file())
        described += [input_file(name, f"models.{model}.path") for name in names]
    if isinstance(section, PathModel | HubModel) and section.adapter:
        described += _adapter_files(Path(section.adapter), f"models.{model}.adapter")
    return described


def _adapter_files(folder: Path, key: str) -> list[str]:
    for name in ADAPTER_FILES:
        if not (folder / name).is_file():
            raise UserError(key, f"got {folder}, expected a folder with {name}", CHECK_PATH)
    return [input_file(str(folder / name), key) for name in ADAPTER_FILES]


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
            CHECK_PATH,
        )
    # Python writes the last ones when it runs code of a task.
    files = [
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return sorted(input_file(str(path), key) for path in files)
