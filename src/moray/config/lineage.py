"""Checks of what runs start from: names, cycles, and sweeps whose best one is chosen."""

import difflib
from collections.abc import Collection, Iterator
from typing import Any

from moray.config.plan import chat_template, exports_adapter, modality, store_folders
from moray.config.schema.base import result_keys
from moray.config.schema.experiment import Experiment
from moray.config.schema.models import RunModel, ScratchModel
from moray.config.schema.start import BestRef, ModelOrRun, RunRef
from moray.config.tasks import FORMATS
from moray.errors import UserError


def faults_of_name(
    path: str, name: str, names: Collection[str], section: str
) -> Iterator[UserError]:
    """A fault if no entry of a section has the name."""
    if name in names:
        return
    close = difflib.get_close_matches(name, names, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"add it under {section}"
    yield UserError(path, f"got {name}, expected a name under {section}", remedy)


def faults_of_start(experiment: Experiment, path: str, model: ModelOrRun) -> Iterator[UserError]:
    """A fault if a model, another run or the best of a sweep, named by a key, doesn't exist."""
    if isinstance(model, str):
        reference = "run" if model in experiment.runs else "best"
        if model in experiment.models or model not in {*experiment.runs, *experiment.sweeps}:
            yield from faults_of_name(path, model, experiment.models, "models")
            return
        yield UserError(
            path,
            f"got {model}, which is under runs, expected a name under models",
            f"write {{{reference}: {model}}} for its model",
        )
    elif isinstance(model, RunRef):
        sweep = experiment.sweeps.get(model.run)
        if sweep is None:
            yield from faults_of_name(f"{path}.run", model.run, experiment.runs, "runs")
            return
        yield UserError(
            f"{path}.run",
            f"{model.run} is a sweep of {len(sweep)} runs",
            f"name one of them, such as {next(iter(sweep))}, or write {{best: {model.run}}}",
        )
    elif model.best in experiment.runs:
        yield UserError(
            f"{path}.best",
            f"got {model.best}, which is one run, expected one with grid or seeds",
            f"write {{run: {model.best}}}",
        )
    else:
        yield from faults_of_name(f"{path}.best", model.best, experiment.sweeps, "runs")


def existing_starts(experiment: Experiment, run: str) -> list[str]:
    """The runs that a run may start from, without names that nothing has."""
    return _existing(experiment, experiment.runs[run].model)


def _existing(experiment: Experiment, model: ModelOrRun) -> list[str]:
    runs = experiment.runs_of(model) if not _is_missing(experiment, model) else []
    return [run for run in runs if run in experiment.runs]


def _is_missing(experiment: Experiment, model: ModelOrRun) -> bool:
    return isinstance(model, BestRef) and model.best not in experiment.sweeps


def existing_base(experiment: Experiment, run: str) -> str | None:
    """The base model of a run; None if a name on the way to it is wrong, or runs form a cycle."""
    return _base(experiment, experiment.runs[run].model)


def _base(experiment: Experiment, model: ModelOrRun) -> str | None:
    visited: set[str] = set()
    while not isinstance(model, str):
        # Runs of a sweep have the same.
        run = next(iter(_existing(experiment, model)), None)
        if run is None or run in visited:
            return None
        visited.add(run)
        model = experiment.runs[run].model
    return model if model in experiment.models else None


def faults_of_teacher(experiment: Experiment, name: str) -> Iterator[UserError]:
    """Faults of a run's teacher, as far as they are known without its files."""
    run = experiment.runs[name]
    if not run.distillation:
        return
    path = f"runs.{name}.distillation"
    formats = {
        experiment.datasets[one].format for one in run.datasets if one in experiment.datasets
    }
    if others := [one for one in formats if FORMATS[one].task != "language"]:
        yield UserError(path, f"is for runs on text, and format: {others[0]} isn't", "remove it")
    path += ".teacher"
    yield from faults_of_start(experiment, path, run.distillation.teacher)
    base, own = _base(experiment, run.distillation.teacher), existing_base(experiment, name)
    if base is None or own is None:
        return
    teacher, student = experiment.models[base], experiment.models[own]
    if getattr(teacher, "classes_of", None):
        yield UserError(path, f"models.{base} is no language model", "choose another model")
    if not isinstance(teacher, ScratchModel):
        return
    if isinstance(student, ScratchModel) and teacher.tokenizer != student.tokenizer:
        yield other_tokenizer_error(path, f"models.{base}.tokenizer", f"models.{own}.tokenizer")
    if run.data.block_size > (most := teacher.max_position_embeddings):
        yield UserError(
            path,
            f"rows have {run.data.block_size} tokens, and models.{base} takes at most {most}",
            "lower data.block_size, or raise max_position_embeddings of the teacher",
        )


def other_tokenizer_error(path: str, teacher: str, student: str) -> UserError:
    """The error for a teacher whose tokens aren't those of the rows; by the places of both."""
    return UserError(
        path,
        f"its tokenizer, {teacher}, differs from {student}, so it predicts other tokens",
        "choose a teacher of the same family",
    )


def candidates(experiment: Experiment) -> set[str]:
    """The runs of sweeps whose best one is chosen."""
    models = (model for run in experiment.runs for model in experiment.models_of(run).values())
    sweeps = {model.best for model in models if isinstance(model, BestRef)}
    return {run for sweep in sweeps for run in experiment.sweeps.get(sweep, ())}


def faults_of_source_run(experiment: Experiment, path: str, model: RunModel) -> Iterator[UserError]:
    """Faults of a base model that is made of a run."""
    name, run = model.run, experiment.runs.get(model.run)
    if run is None:
        yield from faults_of_name(f"{path}.run", name, experiment.runs, "runs")
    elif all(dataset in experiment.datasets for dataset in run.datasets):
        if (of := modality(experiment, name)) != "text":
            yield UserError(
                f"{path}.run",
                f"got {name}, which is on {of}, expected a run on text",
                "choose another, or write {run: " + name + "} as the model of a run",
            )
        if exports_adapter(experiment, name):
            yield UserError(
                f"{path}.run",
                f"run {name} exports only its adapter",
                f"set export.merge_adapter: true in run {name}",
            )


def faults_of_cycles(experiment: Experiment) -> Iterator[UserError]:
    """A fault for each run that needs its own model, directly or not."""
    for name in experiment.runs:
        for key, model in experiment.models_of(name).items():
            if circle := _way_back(experiment, name, model):
                if not isinstance(model, str):
                    key += ".best" if isinstance(model, BestRef) else ".run"
                yield UserError(
                    f"runs.{name}.{key}",
                    f"runs form a cycle ({' <- '.join(circle)})",
                    "give one of them a base model from models",
                )


def _way_back(experiment: Experiment, name: str, model: ModelOrRun) -> list[str] | None:
    """A path of runs from one by a model that it needs back to itself; None if there is none."""
    visited: set[str] = set()
    waiting = [([name], model)]
    while waiting:
        path, needed = waiting.pop()
        for run in _existing(experiment, needed):
            if run == name:
                return [*path, name]
            if run not in visited:
                visited.add(run)
                models = experiment.models_of(run).values()
                waiting += [([*path, run], other) for other in models]
    return None


def faults_of_sweeps(experiment: Experiment) -> Iterator[UserError]:
    """A fault if a run starts from the best of a sweep whose losses are of different rows."""
    differences: dict[str, list[str]] = {}
    named = (
        (f"runs.{name}.{key}", model)
        for name in experiment.runs
        for key, model in experiment.models_of(name).items()
    )
    for path, model in named:
        if not isinstance(model, BestRef):
            continue
        sweep = model.best
        if sweep not in differences:
            differences[sweep] = _differences(experiment, experiment.runs_of(model))
        if differences[sweep]:
            yield UserError(
                f"{path}.best",
                f"the runs of {sweep} differ in their {' and '.join(differences[sweep])}, so their "
                "validation losses can't be compared",
                "write {run: NAME} instead, with the name of one of them",
            )


def _differences(experiment: Experiment, runs: list[str]) -> list[str]:
    first, *others = (_basis_of_loss(experiment, run) for run in runs)
    return [key for key in first if any(other[key] != first[key] for other in others)]


def _basis_of_loss(experiment: Experiment, run: str) -> dict[str, Any]:
    """Settings on which a validation loss depends besides those of the training."""
    section = experiment.runs[run]
    return {
        "base model": experiment.base_model(run),
        "datasets": section.datasets,
        "rows": store_folders(experiment, run),
        "chat template": chat_template(experiment, run),
        "train.eval_rows": section.train.eval_rows,
        "preference": result_keys(section.preference),
        "distillation": section.distillation and result_keys(section.distillation),
        "kto": result_keys(section.kto),
        "reward": result_keys(section.reward),
    }
