"""What each stage's result depends on and where it is stored, for the workflow's rules.

Each function that ends in `_config` returns the param `cfg` of a rule: builtins with sorted keys,
and only the keys that the result depends on, because the workflow re-runs a stage when its `cfg`
prints differently. Those that end in `_files` return the user's files that are inputs of a rule.
"""

import hashlib
import json
from operator import attrgetter
from pathlib import Path
from typing import Any

from moray.config.input_files import endings_of, input_file, input_files
from moray.config.inputs import CHECK_PATH
from moray.config.layout import workers_are_here
from moray.config.schema.base import result_keys
from moray.config.schema.experiment import BestRef, Experiment, RunRef
from moray.config.schema.models import HubModel, PathModel, RunModel, ScratchModel
from moray.config.tasks import (
    FORMATS,
    MODALITIES,
    MODEL_KEYS,
    TASKS,
    Modality,
    TaskName,
    modality_of_format,
    source_module,
)
from moray.errors import UserError

SPLITS = ("train", "validation", "test")


def dataset_config(experiment: Experiment, dataset: str) -> dict[str, Any]:
    """What a dataset's rows depend on."""
    section = experiment.datasets[dataset]
    config = result_keys(section)
    if state := section.state(f"datasets.{dataset}"):
        config["state"] = state
    return dict(sorted(config.items()))


def model_config(experiment: Experiment, model: str) -> dict[str, Any]:
    """What a base model depends on."""
    section = experiment.models[model]
    config = result_keys(section)
    if isinstance(section, PathModel | HubModel) and section.classes_of is None:
        unread = {"classes_of"} if section.random_weights else {"classes_of", "seed"}
        return {key: config[key] for key in config if key not in unread}
    return config


def source_of(experiment: Experiment, dataset: str) -> str:
    """The module of a dataset's source."""
    section = experiment.datasets[dataset]
    return source_module(section.source, section.format)


def modality_of_dataset(experiment: Experiment, dataset: str) -> Modality:
    """The modality of a dataset, which follows from its format."""
    return modality_of_format(experiment.datasets[dataset].format)


def dataset_of_model(experiment: Experiment, model: str) -> str | None:
    """The dataset that a base model names, whose classes it tells apart; None if it names none."""
    keys = (getattr(experiment.models[model], key, None) for key in MODEL_KEYS)
    return next(filter(None, keys), None)


def modality_of_model(experiment: Experiment, model: str) -> Modality:
    """The modality of a base model: that of the dataset that it names, or text."""
    named = dataset_of_model(experiment, model)
    return modality_of_dataset(experiment, named) if named else "text"


def modality(experiment: Experiment, run: str) -> Modality:
    """The modality of a run, which is that of its datasets."""
    return TASKS[task(experiment, run)].modality


def task(experiment: Experiment, run: str) -> TaskName:
    """The task of a run, which follows from the format of its datasets."""
    first = next(iter(experiment.runs[run].datasets))
    return FORMATS[experiment.datasets[first].format].task


def _section_of_task(experiment: Experiment, run: str) -> dict[str, dict[str, Any]]:
    """The section of a run's config that only its task reads, by its name; empty without one."""
    if not (facts := TASKS[task(experiment, run)]).section_path:
        return {}
    return {facts.section_name: result_keys(attrgetter(facts.section_path)(experiment.runs[run]))}


def store_config(experiment: Experiment, run: str, name: str) -> dict[str, Any]:
    """What a run's rows of a dataset depend on, besides it and the tokenizer or processor."""
    section, dataset = experiment.runs[run], experiment.datasets[name]
    format, keys = FORMATS[dataset.format], MODALITIES[modality(experiment, run)].data_keys
    template = _template(experiment, run) if format.chat else {}
    if keys is not None:
        own = {key: getattr(section.data, key) for key in (*keys, *TASKS[format.task].data_keys)}
        return dict(sorted({"format": dataset.format, **own, **template}.items()))
    config = {"format": dataset.format, **result_keys(section.data)}
    # The answers of a pair are one turn each.
    has_turns = format.chat and not format.has_pairs
    config["mask_history"] = section.data.mask_history and has_turns
    unread = ["augmentation", "template_variables"] + ["turns"] * (not has_turns)
    for key in unread + ["train_template_text"] * (not format.chat):
        config.pop(key, None)
    return dict(sorted({**config, "chat_template": None, **template}.items()))


def chat_template(experiment: Experiment, run: str) -> str | None:
    """The chat template of a run's model; None for the tokenizer's own.

    A run on conversations uses the template of its own section. Other runs, and runs without a
    template, use that of the run they start from.
    """
    own = experiment.runs[run].data.chat_template if _is_chat(experiment, run) else None
    if own is None and (starts := experiment.starts(run)):
        return chat_template(experiment, starts[0])
    return own


def template_variables(experiment: Experiment, run: str) -> dict[str, bool | int | float | str]:
    """The variables of a run's chat template: its own, and others of the run it starts from.

    A run with a template of its own has its own variables alone.
    """
    data, is_chat = experiment.runs[run].data, _is_chat(experiment, run)
    own = data.template_variables if is_chat else {}
    has_template = is_chat and data.chat_template is not None
    starts = experiment.starts(run)
    inherited = template_variables(experiment, starts[0]) if starts and not has_template else {}
    return dict(sorted((inherited | own).items()))


def _template(experiment: Experiment, run: str) -> dict[str, Any]:
    """The chat template of a run, and its variables if it has any."""
    variables = template_variables(experiment, run)
    own = {"chat_template": chat_template(experiment, run)}
    return own | ({"template_variables": variables} if variables else {})


def _is_chat(experiment: Experiment, run: str) -> bool:
    """Whether any dataset of a run has conversations."""
    names = experiment.runs[run].datasets
    return any(FORMATS[experiment.datasets[name].format].chat for name in names)


def store_name(experiment: Experiment, run: str, dataset: str) -> str:
    """Name of a run's store of a dataset; runs with equal data settings share one."""
    model = experiment.base_model(run)
    digest = _digest([dataset, model, store_config(experiment, run, dataset)])
    return f"{dataset}-{model}-{digest}"


def has_reference(experiment: Experiment, run: str) -> bool:
    """Whether a run trains on its rows with what its start says of them."""
    facts, section = TASKS[task(experiment, run)], experiment.runs[run]
    return facts.has_reference and section.preference.has_reference


def reference_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's reference depends on, besides its start and its tokens.

    It is held and computed as the run's own model, so that both agree before the first step.
    """
    section = experiment.runs[run]
    return {
        "precision": section.train.precision,
        "base_dtype": section.adapter.base_dtype if section.adapter else "fp32",
        "quantize_base": section.adapter.quantize_base if section.adapter else None,
    }


def reference_name(experiment: Experiment, run: str) -> str:
    """Name of a run's reference; runs with equal starts, tokens and types share one."""
    start, (dataset,) = start_folder(experiment, run), experiment.runs[run].datasets
    store = store_name(experiment, run, dataset)
    digest = _digest([start, store, reference_config(experiment, run)])
    return f"{dataset}-{_name_of_start(experiment, run)}-{digest}"


def _digest(identity: list[Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def prepared_folders(experiment: Experiment, run: str) -> list[str]:
    """The stores that a run's datasets are prepared into, in their order."""
    folder = MODALITIES[modality(experiment, run)].prepared
    names = (store_name(experiment, run, name) for name in experiment.runs[run].datasets)
    return [f"{folder}/{name}" for name in names]


def store_folders(experiment: Experiment, run: str) -> list[str]:
    """The stores of the rows that a run trains on, in the order of its datasets."""
    if has_reference(experiment, run):
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


def train_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's weights depend on, besides its rows and its start."""
    section = experiment.runs[run]
    config = {
        "adapter": section.adapter and result_keys(section.adapter),
        "datasets": section.datasets,
        "train": result_keys(section.train),
    }
    return dict(sorted((config | _section_of_task(experiment, run)).items()))


def evaluate_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's scores depend on, besides models and tokens."""
    section = experiment.runs[run]
    own = _section_of_task(experiment, run)
    config = {"datasets": list(section.datasets), **result_keys(section.evaluate), **own}
    if len(trained_by := experiment.trained_by(run)) > 1:
        config["trained_by"] = dict(sorted(trained_by.items()))
    return dict(sorted(config.items()))


def generate_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's samples depend on, besides models and prompts."""
    section = experiment.runs[run]
    datasets = {name: store_config(experiment, run, name) for name in section.datasets}
    config = {"datasets": datasets, **result_keys(section.generate)}
    if section.generate.metrics:
        config |= interval_config(experiment, run)
    return dict(sorted(config.items()))


def predict_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's predictions depend on, besides models and rows."""
    section = experiment.runs[run].generate
    return {"num_samples": section.num_samples, "precision": section.precision}


def interval_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What the intervals of a run's figures depend on."""
    section = experiment.runs[run].evaluate
    return {"bootstrap_samples": section.bootstrap_samples, "confidence": section.confidence}


def benchmark_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's benchmarks depend on, besides models and task files."""
    section = experiment.runs[run].benchmarks
    return dict(sorted({**result_keys(section), **interval_config(experiment, run)}.items()))


def export_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What the model card says about a run, besides what training recorded."""
    section = experiment.runs[run]
    is_language = MODALITIES[modality(experiment, run)].data_keys is None
    of_text = _template(experiment, run) if is_language or _is_chat(experiment, run) else {}
    if is_language and section.data.bos != "auto":
        of_text["bos"] = section.data.bos
    return {
        **of_text,
        "datasets": section.datasets,
        **result_keys(section.export),
        "run": run,
        "start": start_folder(experiment, run),
    }


def push_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """Where a run's model is uploaded to, for a run that says it."""
    section = experiment.runs[run].push
    assert section
    return dict(sorted({"run": run, **result_keys(section)}.items()))


def gguf_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's GGUF files depend on, besides its model, for a run that has any."""
    section = experiment.runs[run].gguf
    assert section
    return result_keys(section)


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
        UserError: if the user's folder has no `config.json`.
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
        return [*described, *(input_file(name, f"models.{model}.path") for name in names)]
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
            CHECK_PATH,
        )
    # Python writes the last ones when it runs code of a task.
    files = [
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return sorted(input_file(str(path), key) for path in files)
