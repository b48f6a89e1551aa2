"""What each stage's result depends on and where it is stored, for the workflow's rules.

Each function that ends in `_config` returns the param `cfg` of a rule: builtins with sorted keys,
and only the keys that the result depends on, because the workflow re-runs a stage when its `cfg`
prints differently.
"""

import hashlib
import json
from operator import attrgetter
from typing import Any

from moray.config.schema.base import result_keys
from moray.config.schema.experiment import Experiment
from moray.config.schema.models import HubModel, PathModel
from moray.config.schema.start import BestRef, ModelOrRun, RunRef
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


def task_of_training(experiment: Experiment, run: str) -> TaskName:
    """The task that a run is trained as: with a teacher, another one than it is scored as."""
    return "distillation" if experiment.runs[run].distillation else task(experiment, run)


def _section_of(task: TaskName, experiment: Experiment, run: str) -> dict[str, dict[str, Any]]:
    """The section of a run's config that only a task reads, by its name; empty without one."""
    facts = TASKS[task]
    if not facts.section_path:
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
    has_turns = format.chat and not format.answered
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
    if not facts.has_reference:
        return False
    # Only some of its losses may need it.
    return bool(getattr(attrgetter(facts.section_path)(section), "has_reference", True))


def reference_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's reference depends on, besides its start and its tokens.

    It is held and computed as the run's own model, so that both agree before the first step.
    """
    section = experiment.runs[run]
    adapter = section.adapter
    continued = adapter and not adapter.create_new_adapter
    return {
        **({"adapter": result_keys(adapter)} if adapter and continued else {}),
        "precision": section.train.precision,
        "base_dtype": adapter.base_dtype if adapter else "fp32",
        "quantize_base": adapter.quantize_base if adapter else None,
    }


def reference_name(experiment: Experiment, run: str) -> str:
    """Name of a run's reference; runs with equal starts, tokens and types share one."""
    start, (dataset,) = start_folder(experiment, run), experiment.runs[run].datasets
    store = store_name(experiment, run, dataset)
    digest = _digest([start, store, reference_config(experiment, run)])
    return f"{dataset}-{_name_of(experiment.runs[run].model)}-{digest}"


def teacher_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What is stored of a run's teacher depends on, besides the teacher and the run's tokens."""
    section = experiment.runs[run].distillation
    assert section
    return {
        "precision": section.precision,
        "temperature": section.temperature,
        "top_k": section.top_k,
    }


def taught_stores(experiment: Experiment, run: str) -> dict[str, str]:
    """The stores of a run's rows with what its teacher says of them, by dataset.

    Runs with equal teachers, tokens and settings share them. There are none without a teacher.
    """
    section = experiment.runs[run].distillation
    if not section:
        return {}
    teacher, config = folder_of(section.teacher), teacher_config(experiment, run)
    stores = {}
    for dataset in experiment.runs[run].datasets:
        digest = _digest([teacher, store_name(experiment, run, dataset), config])
        stores[dataset] = f"{dataset}-{_name_of(section.teacher)}-{digest}"
    return stores


def _digest(identity: list[Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def prepared_folders(experiment: Experiment, run: str) -> list[str]:
    """The stores that a run's datasets are prepared into, in their order."""
    folder = MODALITIES[modality(experiment, run)].prepared
    names = (store_name(experiment, run, name) for name in experiment.runs[run].datasets)
    return [f"{folder}/{name}" for name in names]


def store_folders(experiment: Experiment, run: str) -> list[str]:
    """The stores of the rows that a run trains on, in the order of its datasets."""
    if taught := taught_stores(experiment, run):
        return [f"results/teacher/{name}" for name in taught.values()]
    if has_reference(experiment, run):
        return [f"results/reference/{reference_name(experiment, run)}"]
    return prepared_folders(experiment, run)


def start_folder(experiment: Experiment, run: str) -> str:
    """The Hugging Face folder that a run starts from."""
    return folder_of(experiment.runs[run].model)


def folder_of(model: ModelOrRun) -> str:
    """The Hugging Face folder of a base model, or of the model of a run."""
    name = _name_of(model)
    if isinstance(model, BestRef):
        return f"results/best/{name}/model"
    return f"results/runs/{name}/model" if isinstance(model, RunRef) else f"results/models/{name}"


def _name_of(model: ModelOrRun) -> str:
    if isinstance(model, BestRef):
        return model.best
    return model.run if isinstance(model, RunRef) else model


def start_dependencies(experiment: Experiment, run: str) -> list[str]:
    """The folders that are needed to load the start of a run, besides its own.

    An adapter exported without its base needs the start of its own run, and what that needs.
    """
    return _dependencies(experiment, experiment.starts(run))


def teacher_dependencies(experiment: Experiment, run: str) -> list[str]:
    """The folders that are needed to load the teacher of a run, besides its own."""
    return _dependencies(experiment, experiment.teachers(run))


def _dependencies(experiment: Experiment, runs: list[str]) -> list[str]:
    folders = [
        folder
        for run in runs
        if exports_adapter(experiment, run)
        for folder in (start_folder(experiment, run), *start_dependencies(experiment, run))
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
    config |= _section_of(task_of_training(experiment, run), experiment, run)
    return dict(sorted(config.items()))


def evaluate_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's scores depend on, besides models and tokens."""
    section = experiment.runs[run]
    config = {"datasets": list(section.datasets), **result_keys(section.evaluate)}
    config |= _section_of(task(experiment, run), experiment, run)
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
