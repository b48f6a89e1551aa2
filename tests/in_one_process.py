"""The stages of every run of a config, one after the other in this process, as the rules call them.

Much quicker than the workflow, each of whose jobs is a process with imports of its own.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from moray import machine
from moray.config import layout, plan
from moray.config.load import load_experiment, merge
from moray.config.schema.experiment import Experiment
from moray.config.tasks import module_of
from moray.stages.base_model import base_model
from moray.stages.download import download
from moray.stages.evaluate import evaluate
from moray.stages.export import export
from moray.stages.finetune import finetune
from moray.tasks.images.decode import decode
from moray.tasks.images.predict import predict
from moray.tasks.language.generate import generate
from moray.tasks.language.tokenize import tokenize
from moray.tasks.preference.reference import reference

RESULTS = Path("results")


def merged(files: Sequence[Path]) -> dict[str, Any]:
    """A config and overlays, the later ones merged over the earlier."""
    whole: dict[str, Any] = {}
    for file in files:
        whole = merge(whole, yaml.safe_load(file.read_text()))
    return whole


def make_all(project: Path, config: dict[str, Any]) -> None:
    """Make in a project's folder what `snakemake eval generate` makes, but for lineage checks."""
    os.chdir(project)
    experiment = load_experiment(config)
    for dataset in dict.fromkeys(name for run in experiment.runs.values() for name in run.datasets):
        files = plan.dataset_files(experiment, dataset)
        download(RESULTS / "datasets" / dataset, plan.dataset_config(experiment, dataset), files)
    for run in experiment.runs:
        _make(experiment, run)


def _make(experiment: Experiment, run: str) -> None:
    section, modality = experiment.runs[run], plan.modality(experiment, run)
    cores = machine.cores()
    folders = {name: RESULTS / "datasets" / name for name in section.datasets}
    base = experiment.base_model(run)
    model = RESULTS / "models" / base
    if not model.exists():
        files = [Path(file) for file in plan.model_files(experiment, base)]
        dataset = next((file.parent for file in files if file.name == "dataset.json"), None)
        kind = plan.modality_of_model(experiment, base)
        base_model(model, plan.model_config(experiment, base), dataset, modality=kind)
    prepared = [Path(folder) for folder in plan.prepared_folders(experiment, run)]
    for (name, folder), output in zip(folders.items(), prepared, strict=True):
        cfg = plan.store_config(experiment, run, name)
        if modality == "images":
            decode(folder, model, output, cfg)
        elif modality == "labelled text":
            own = module_of(plan.task(experiment, run), "tokenize_labelled")
            own.tokenize_labelled(folder, model, output, cfg)
        else:
            source = plan.dataset_config(experiment, name)
            tokenize(folder, model, output, cfg, source, plan.dataset_files(experiment, name))
    start, output = Path(plan.start_folder(experiment, run)), RESULTS / "runs" / run
    stores = [Path(folder) for folder in plan.store_folders(experiment, run)]
    evaluation = layout.evaluation_execution(experiment, run, "evaluate", cores)
    if stores != prepared:
        cfg = plan.reference_config(experiment, run)
        reference(run, start, prepared[0], stores[0], cfg, evaluation)
    output.mkdir(parents=True)
    execution = layout.train_execution(experiment, run, cores)
    finetune(run, start, stores, output, plan.train_config(experiment, run), execution)
    made = [start, *stores, *prepared]
    sources = [folder / "manifest.json" for folder in dict.fromkeys(made)]
    sources += [folder / "dataset.json" for folder in folders.values()]
    train, history, tuned = output / "train.json", output / "history.jsonl", output / "model"
    cfg = plan.export_config(experiment, run)
    export(start, train, history, sources, tuned, cfg, modality)
    cfg = plan.evaluate_config(experiment, run)
    evaluate(run, start, tuned, prepared, output / "eval.json", cfg, evaluation)
    execution = layout.evaluation_execution(experiment, run, "generate", cores)
    samples, settings = output / "samples.jsonl", output / "generation.json"
    rows = [folder / "test.parquet" for folder in folders.values()]
    if modality == "labelled text":
        cfg = plan.predict_config(experiment, run)
        own = module_of(plan.task(experiment, run), "classify")
        own.classify(run, start, tuned, prepared[0], rows[0], samples, settings, cfg, execution)
    elif modality == "images":
        png, svg = output / "predictions.png", output / "predictions.svg"
        cfg = plan.predict_config(experiment, run)
        predict(run, start, tuned, prepared[0], samples, settings, png, svg, cfg, execution)
    else:
        cfg = plan.generate_config(experiment, run)
        generate(run, start, tuned, rows, samples, settings, cfg, execution)
