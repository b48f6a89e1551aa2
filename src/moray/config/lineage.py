"""Checks of what runs start from: names, cycles, and sweeps whose best one is chosen."""

import difflib
from collections.abc import Collection, Iterator
from typing import Any

from moray.config.plan import chat_template, store_folders
from moray.config.schema.base import result_keys
from moray.config.schema.experiment import BestRef, Experiment, RunRef
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


def faults_of_start(
    experiment: Experiment, name: str, model: str | RunRef | BestRef
) -> Iterator[UserError]:
    """A fault if a run starts from a model, another run or the best of a sweep that isn't there."""
    if isinstance(model, str):
        reference = "run" if model in experiment.runs else "best"
        if model in experiment.models or model not in {*experiment.runs, *experiment.sweeps}:
            yield from faults_of_name(f"runs.{name}.model", model, experiment.models, "models")
            return
        yield UserError(
            f"runs.{name}.model",
            f"got {model}, which is under runs, expected a name under models",
            f"write {{{reference}: {model}}} to start from its model",
        )
    elif isinstance(model, RunRef):
        sweep = experiment.sweeps.get(model.run)
        if sweep is None:
            yield from faults_of_name(f"runs.{name}.model.run", model.run, experiment.runs, "runs")
            return
        yield UserError(
            f"runs.{name}.model.run",
            f"{model.run} is a sweep of {len(sweep)} runs",
            f"name one of them, such as {next(iter(sweep))}, or write {{best: {model.run}}}",
        )
    elif model.best in experiment.runs:
        yield UserError(
            f"runs.{name}.model.best",
            f"got {model.best}, which is one run, expected one with grid or seeds",
            f"write {{run: {model.best}}}",
        )
    else:
        yield from faults_of_name(f"runs.{name}.model.best", model.best, experiment.sweeps, "runs")


def existing_starts(experiment: Experiment, run: str) -> list[str]:
    """The runs that a run may start from, without names that nothing has."""
    model = experiment.runs[run].model
    if isinstance(model, BestRef) and model.best not in experiment.sweeps:
        return []
    return [start for start in experiment.starts(run) if start in experiment.runs]


def existing_base(experiment: Experiment, run: str) -> str | None:
    """The base model of a run; None if a name on the way to it is wrong, or runs form a cycle."""
    visited: set[str] = set()
    while run not in visited:
        visited.add(run)
        model = experiment.runs[run].model
        if isinstance(model, str):
            return model if model in experiment.models else None
        # Runs of a sweep have the same.
        run = next(iter(existing_starts(experiment, run)), run)
    return None


def candidates(experiment: Experiment) -> set[str]:
    """The runs of sweeps whose best one is chosen."""
    sweeps = {run.model.best for run in experiment.runs.values() if isinstance(run.model, BestRef)}
    return {run for sweep in sweeps for run in experiment.sweeps.get(sweep, ())}


def faults_of_cycles(experiment: Experiment) -> Iterator[UserError]:
    """A fault for each run that starts from itself, directly or not."""
    for name, run in experiment.runs.items():
        if circle := _way_back(experiment, name):
            yield UserError(
                f"runs.{name}.model.{'best' if isinstance(run.model, BestRef) else 'run'}",
                f"runs form a cycle ({' <- '.join(circle)})",
                "give one of them a base model from models",
            )


def _way_back(experiment: Experiment, name: str) -> list[str] | None:
    """A path of runs from one back to itself; None if there is none."""
    visited: set[str] = set()
    waiting = [[name]]
    while waiting:
        path = waiting.pop()
        for start in existing_starts(experiment, path[-1]):
            if start == name:
                return [*path, name]
            if start not in visited:
                visited.add(start)
                waiting.append([*path, start])
    return None


def faults_of_sweeps(experiment: Experiment) -> Iterator[UserError]:
    """A fault if a run starts from the best of a sweep whose losses are of different rows."""
    differences: dict[str, list[str]] = {}
    for name, run in experiment.runs.items():
        if not isinstance(run.model, BestRef):
            continue
        sweep = run.model.best
        if sweep not in differences:
            differences[sweep] = _differences(experiment, experiment.starts(name))
        if differences[sweep]:
            yield UserError(
                f"runs.{name}.model.best",
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
        "reward": result_keys(section.reward),
    }
