"""Look over all runs before the first stage begins."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from moray.config import plan
from moray.config.schema import Experiment, HubModel, PathModel, ScratchModel
from moray.errors import ConfigError, UserError
from moray.model.shapes import Shapes, llama_shapes, shapes_in
from moray.provenance.manifest import MANIFEST
from moray.train.preflight import faults

_RESULTS = Path("results")


def preflight(experiment: Experiment, runs: Sequence[str]) -> None:
    """Make sure that runs can be trained here, as far as that can be known.

    Raises:
        ConfigError: with all that is wrong.
    """
    found = [*_unreadable(experiment, runs)]
    if not found:
        for name in runs:
            run = experiment.runs[name]
            try:
                shapes = _shapes(experiment, experiment.base_model(name))
            except UserError as error:
                found.append(error)
                shapes = None
            found += faults(name, run.train, run.adapter, run.ray, shapes, _RESULTS)
    if found:
        raise ConfigError(list({str(fault): fault for fault in found}.values()))


def _unreadable(experiment: Experiment, runs: Sequence[str]) -> Iterator[UserError]:
    for dataset in sorted({experiment.runs[run].dataset for run in runs}):
        for files in plan.dataset_files(experiment, dataset).values():
            yield from _readable(f"datasets.{dataset}.path", files)
    for model in sorted({experiment.base_model(run) for run in runs}):
        if isinstance(experiment.models[model], PathModel):
            yield from _readable(f"models.{model}.path", plan.model_files(experiment, model))


def _readable(path: str, files: Sequence[str]) -> Iterator[UserError]:
    for file in files:
        if not os.access(file, os.R_OK):
            yield UserError(path, f"got {file}, which can't be read", "change its permissions")


def _shapes(experiment: Experiment, model: str) -> Shapes | None:
    """The shapes of a base's weights; None while a model of the hub isn't here."""
    section = experiment.models[model]
    if isinstance(section, ScratchModel):
        return llama_shapes(section)
    folder = Path(section.path) if isinstance(section, PathModel) else _RESULTS / "models" / model
    if isinstance(section, HubModel) and not (folder / MANIFEST).exists():
        # A download that was killed leaves a part.
        return None
    return shapes_in(folder) or None
