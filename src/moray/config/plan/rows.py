"""What the rows of a run are: its stores, its reference, its start."""

import hashlib
import json
from typing import Any

from moray.config.formats import FORMATS
from moray.config.plan.data import modality, task
from moray.config.schema import BestRef, Dataset, Experiment, RunRef, result_keys
from moray.config.tasks import TASKS


def store_config(experiment: Experiment, run: str, name: str) -> dict[str, Any]:
    """What a run's rows of a dataset depend on, besides it and the tokenizer or processor."""
    section, dataset = experiment.runs[run], experiment.datasets[name]
    if modality(experiment, run) == "images":
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
    return FORMATS[dataset.format].chat


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


def prepared_folders(experiment: Experiment, run: str) -> list[str]:
    """The stores that a run's datasets are prepared into, in their order."""
    folder = TASKS[task(experiment, run)].prepared
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


def _name_of_start(experiment: Experiment, run: str) -> str:
    model = experiment.runs[run].model
    if isinstance(model, BestRef):
        return model.best
    return model.run if isinstance(model, RunRef) else model


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
