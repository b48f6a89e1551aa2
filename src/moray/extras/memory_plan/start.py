"""What is to be planned, from a project's config: nothing has to be made or downloaded yet."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from moray import machine
from moray.config import plan, user_files
from moray.config.extras import check_all_there
from moray.config.grid import with_value
from moray.config.layout import lay_out_here, on_cores_of, threads
from moray.config.load import load_experiment
from moray.config.recorded import existing_model_folder
from moray.config.schema.experiment import Experiment
from moray.config.schema.models import HubModel, PathModel, RunModel, ScratchModel
from moray.config.schema.sections import WorkerRange
from moray.errors import ConfigError, UserError
from moray.extras.memory_plan.advice import Accepts
from moray.extras.memory_plan.setup import PLANNED, Setup
from moray.model.shapes import positions_in
from moray.tasks.language.scratch import llama_config
from moray.train.checks import model_faults
from moray.train.spec import task_settings


def accepted_by_check(experiment: Experiment, run: str) -> Accepts:
    """Whether the config's check would accept a run with other keys, as advice names them."""
    written = experiment.model_dump(mode="json", exclude_unset=True)
    # Of a sweep's runs, the sweep isn't written any more.
    before = _faults(written)

    def accepts(keys: Sequence[str]) -> bool:
        section = written["runs"][run]
        for key in keys:
            path, _, value = key.partition(": ")
            section = with_value(section, path, yaml.safe_load(value))
        return _faults({**written, "runs": {**written["runs"], run: section}}) <= before

    return accepts


def _faults(config: Mapping[str, Any]) -> set[str]:
    try:
        check_all_there(load_experiment(config))
    except ConfigError as error:
        return {*map(str, error.problems)}
    return set()


@contextmanager
def setup_of(experiment: Experiment, run: str) -> Iterator[Setup]:
    """What the memory of a run depends on; its model's folder exists during the body.

    Raises:
        UserError: if there is no such run, it can't be planned, or its model isn't known yet.
        ConfigError: if the model can't have rows of the run's length.
    """
    if run not in experiment.runs:
        known = ", ".join(sorted(experiment.runs))
        raise UserError(
            f"runs.{run}",
            "there is no such run",
            f"name one of {known}, or the overlay that it is in, with --configfile",
        )
    section = experiment.runs[run]
    if (task := plan.task_of_training(experiment, run)) not in PLANNED:
        raise UserError(
            f"runs.{run}",
            f"a run on {task} can't be planned, only on {', '.join(PLANNED)}",
            "train a few steps, and see what is used",
        )
    device = "cpu" if section.ray.use_gpu is False else "cuda"
    with TemporaryDirectory() as temporary:
        model = experiment.base_model(run)
        folder = _folder(experiment, model, Path(temporary))
        block_size, positions = section.data.block_size, positions_in(folder / "config.json")
        if faults := [*model_faults(run, block_size, positions, section.adapter, None)]:
            raise ConfigError(faults)
        setup = Setup(
            model=f"models.{model}",
            folder=folder,
            block_size=block_size,
            # What fits is what `auto` takes.
            settings=section.train.model_copy(update={"micro_batch_size": 1})
            if section.train.micro_batch_size == "auto"
            else section.train,
            adapter=section.adapter,
            workers=_workers(experiment, run, device),
            device=device,  # type: ignore[arg-type]
            task=task,
            task_settings=task_settings(plan.train_config(experiment, run)),
            packing=section.data.packing is not False,
        )
        if fault := setup.fault_of_quantization():
            raise UserError(f"runs.{run}.{fault.path}", fault.problem, fault.remedy)
        yield setup


def _workers(experiment: Experiment, run: str, device: str) -> int:
    """Number of workers; of one that depends on the GPUs of another machine, the smallest."""
    section = experiment.runs[run]
    ray = section.ray
    if ray.address == "local" and (device == "cpu" or machine.gpus()):
        share = threads(experiment, run, "train", machine.cores())
        ray = on_cores_of(experiment, run, "train", share)
        return lay_out_here(ray, section.train.global_batch_size).num_workers
    if isinstance(ray.num_workers, WorkerRange):
        return ray.num_workers.min
    return 1 if ray.num_workers == "auto" else ray.num_workers


def _folder(experiment: Experiment, model: str, temporary: Path) -> Path:
    """A folder with the `config.json` of a base model."""
    section = experiment.models[model]
    if made := existing_model_folder(experiment, model):
        return made
    if isinstance(section, ScratchModel):
        llama_config(section.model_dump(), section.tokenizer.vocab_size).save_pretrained(temporary)
        return temporary
    if isinstance(section, RunModel):
        # Its body is that of the run's own base.
        return _folder(experiment, experiment.base_model(section.run), temporary)
    if isinstance(section, PathModel):
        # Its errors are those of the workflow.
        user_files.model_files(experiment, model)
        return Path(section.path)
    assert isinstance(section, HubModel)
    # Takes a while to import.
    from moray.model.obtain import hub_config

    config = hub_config(section.repo_id, section.revision)
    if config is None:
        raise UserError(
            f"models.{model}",
            f"can't download config.json of {section.repo_id}, so its shape isn't known",
            "check repo_id, revision, the connection, and for a gated repository the token",
        )
    return config.parent
