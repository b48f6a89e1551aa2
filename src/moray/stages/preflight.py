"""Check all runs before the first stage starts."""

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from moray import machine
from moray.config import extras, plan, user_files
from moray.config.layout import on_cores_of, threads
from moray.config.recorded import existing_model_folder
from moray.config.schema.experiment import Experiment, Run
from moray.config.schema.models import HubModel, PathModel, ScratchModel
from moray.config.schema.train import Adapter
from moray.config.tasks import FORMATS, MODALITIES, TASKS, module_of, sequence_length
from moray.console import say
from moray.errors import ConfigError, UserError
from moray.hub import has_token, missing_token_error
from moray.model.chat_template import (
    chat_templates,
    unused_variable_error,
    unused_variables,
)
from moray.model.shapes import (
    Shapes,
    has_experts,
    llama_shapes,
    positions_in,
    quantization_in,
    shapes_in,
)
from moray.provenance.manifest import read_json
from moray.tracking.interface import missing_packages
from moray.train.checks import missing_requirements, model_faults, sharding_faults
from moray.train.schedule import never_stops_early

_RESULTS = Path("results")
# Keys of an adapter, by those of PEFT's file.
_OF_PEFT = {"rank": "r", "alpha": "lora_alpha", "use_rslora": "use_rslora", "use_dora": "use_dora"}


def preflight(
    experiment: Experiment,
    runs: Sequence[str],
    generated: Sequence[str] = (),
    pushed: Sequence[str] = (),
    stages: Mapping[str, Sequence[str]] = {},
    cores: int | None = None,
    here: bool = True,
    ask_hub: bool = True,
) -> None:
    """Check that runs can be trained, as far as it can be known in advance.

    Args:
        stages: the runs that stages of extras are about to make something of.
        cores: those that runs share; None for all of this machine's.
        here: whether jobs run on this machine; if not, what it has and lacks is no fault.
        ask_hub: whether to fetch the small config file of a model that isn't downloaded yet, which
            takes a while if the Hub doesn't answer.

    Raises:
        ConfigError: with every fault.
    """
    searches = stages.get("search", ())
    faults = [*_unreadable(experiment, sorted({*runs, *searches}), here)]
    if not faults:
        candidates = [(name, experiment.runs[name]) for name in runs]
        for name in searches:
            space = extras.part(extras.STAGES["search"], "space")
            candidates += [(name, run) for run in space.candidates(experiment.runs[name])]
        for name, run in candidates:
            shapes, own_faults = _of_model(experiment, name, run, ask_hub)
            faults += own_faults
            if here:
                share = threads(experiment, name, "train", cores or machine.cores())
                ray = on_cores_of(experiment, name, "train", share)
                faults += missing_requirements(name, run.train, run.adapter, ray, shapes, _RESULTS)
    for name in generated:
        faults += _without_room(experiment, name, ask_hub)
    if here:
        for name in runs:
            faults += missing_packages(name, experiment.runs[name].tracking)
        for name in generated:
            faults += _missing_for_metrics(experiment, name)
        for stage, names in stages.items():
            for name in names:
                requirements = extras.part(extras.STAGES[stage], "requirements")
                faults += requirements.faults(name, experiment.runs[name])
        if pushed and not has_token():
            faults += map(missing_token_error, pushed)
    if faults:
        raise ConfigError(list({str(fault): fault for fault in faults}.values()))
    for line in _lines_about_patience(experiment, runs):
        say(line)


def _lines_about_patience(experiment: Experiment, names: Sequence[str]) -> Iterator[str]:
    """A line for each patience that can't stop the runs that have it."""
    runs_by_line: dict[str, list[str]] = {}
    for name in names:
        settings = experiment.runs[name].train
        if settings.max_steps and (line := never_stops_early(settings, settings.max_steps)):
            runs_by_line.setdefault(line, []).append(name)
    for line, (first, *others) in runs_by_line.items():
        more = f" (and of {len(others):,} more)" if others else ""
        yield f"warning: runs.{first}.train.early_stopping_patience{more}: {line}"


def _of_model(
    experiment: Experiment, name: str, run: Run, ask_hub: bool
) -> tuple[Shapes | None, list[UserError]]:
    """The shapes of the model that a run starts from, and what it doesn't support."""
    model = experiment.base_model(name)
    shapes, positions = None, None
    faults: list[UserError] = []
    try:
        config = _config(experiment, model, ask_hub)
        positions = _positions(experiment, model, config)
        shapes = _shapes(experiment, model)
        faults += _adapter(experiment, name, run, config)
        faults += _balance(name, run, config)
        faults += _template_faults(experiment, name, model)
    except UserError as error:
        faults.append(error)
    format = experiment.datasets[next(iter(run.datasets))].format
    length = sequence_length(format, run.data.block_size)
    return shapes, [*faults, *model_faults(name, length, positions, run.adapter, shapes)]


def _missing_for_metrics(experiment: Experiment, run: str) -> Iterator[UserError]:
    """The missing requirements of the metrics of a run's continuations."""
    if metrics := experiment.runs[run].generate.metrics:
        shared = MODALITIES[TASKS[plan.task(experiment, run)].modality].task
        yield from module_of(shared, "metric_requirements").missing(run, metrics)


def _without_room(experiment: Experiment, run: str, ask_hub: bool) -> Iterator[UserError]:
    """The fault of continuations that are as long as the model's maximum, as far as it is known."""
    if MODALITIES[TASKS[plan.task(experiment, run)].modality].task != "language":
        return
    new, model = experiment.runs[run].generate.max_new_tokens, experiment.base_model(run)
    try:
        positions = _positions(experiment, model, _config(experiment, model, ask_hub))
    except UserError:
        # It is a fault of the run.
        return
    if positions is not None and new >= positions:
        yield UserError(
            f"runs.{run}.generate.max_new_tokens",
            f"got {new}, which leaves no room for a prompt in the {positions} tokens of "
            f"models.{model}",
            "lower it",
        )


def _unreadable(experiment: Experiment, runs: Sequence[str], here: bool) -> Iterator[UserError]:
    for dataset in sorted({name for run in runs for name in experiment.runs[run].datasets}):
        for files in user_files.dataset_files(experiment, dataset).values():
            yield from _readable(f"datasets.{dataset}.path", files)
        if here:
            yield from _libraries(experiment, dataset)
    for model in sorted({experiment.base_model(run) for run in runs}):
        if isinstance(experiment.models[model], PathModel):
            yield from _readable(f"models.{model}.path", user_files.model_files(experiment, model))


def _libraries(experiment: Experiment, dataset: str) -> Iterator[UserError]:
    """Optional libraries that a dataset needs and that are missing."""
    modality = MODALITIES[plan.modality_of_dataset(experiment, dataset)]
    libraries = {**modality.libraries, **experiment.datasets[dataset].libraries}
    if missing := [name for name, module in libraries.items() if not find_spec(module)]:
        yield UserError(
            f"datasets.{dataset}",
            f"needs packages that are not installed: {', '.join(missing)}",
            f"pip install 'moray[{modality.extra}]'"
            if modality.extra
            else f"pip install {' '.join(missing)}",
        )


def _readable(path: str, files: Sequence[str]) -> Iterator[UserError]:
    for file in files:
        # Another workflow's rule may make one that doesn't exist yet.
        if os.path.exists(file) and not os.access(file, os.R_OK):
            yield UserError(path, f"can't read {file}", "change its permissions")


def _template_faults(experiment: Experiment, run: str, model: str) -> Iterator[UserError]:
    """The faults of a run's chat template on conversations, as far as it is known."""
    formats = [experiment.datasets[name].format for name in experiment.runs[run].datasets]
    # Pairs can be text, which needs no template.
    if not any(FORMATS[name].chat and not FORMATS[name].answered for name in formats):
        return
    if experiment.runs[run].search:
        return
    own, folder = plan.chat_template(experiment, run), _folder(experiment, model)
    templates = [own] if own else chat_templates(folder) if folder else None
    if templates is None:
        return
    if not templates:
        yield UserError(
            f"runs.{run}.data.chat_template",
            f"is not set, and the tokenizer of models.{model} has no chat template",
            "set it (config/instruction.yaml has an example), or use a model that has one",
        )
    elif unused := unused_variables(plan.template_variables(experiment, run), "".join(templates)):
        yield unused_variable_error(f"runs.{run}.data", unused)


def _adapter(
    experiment: Experiment, name: str, run: Run, config: Path | None
) -> Iterator[UserError]:
    """Faults of an adapter with its base, by the base's `config.json`.

    A mixture of experts is built without its files, which name other layers than the model has, and
    so is a model whose modules are named.
    """
    yield from sharding_faults(name, run.train, run.adapter, config)
    if run.adapter and not run.adapter.create_new_adapter:
        yield from _continued(experiment, name, run, run.adapter)
    if not run.adapter or not config:
        return
    if not (has_experts(config) or run.adapter.names_modules):
        return
    # Takes a while to import.
    from moray.model.load import empty_model
    from moray.model.targets import lora_config

    empty = empty_model(config.parent)
    try:
        lora_config(empty, run.adapter)
        if bits := run.adapter.quantize_base:
            extras.part(extras.QUANTIZED[bits], "base").check_quantized(empty, bits)
    except UserError as error:
        yield UserError(f"runs.{name}.{error.path}", error.problem, error.remedy)


def _continued(
    experiment: Experiment, name: str, run: Run, adapter: Adapter
) -> Iterator[UserError]:
    """Faults of an adapter that a run trains further, by its `adapter_config.json`."""
    section = experiment.models[run.model] if isinstance(run.model, str) else None
    if not isinstance(section, PathModel | HubModel) or not section.adapter:
        return
    stored = read_json(Path(section.adapter, "adapter_config.json"), ["r"], "copy it again")
    for key, peft_key in _OF_PEFT.items():
        own, other = getattr(adapter, key), stored.get(peft_key)
        # Files of older versions of PEFT lack some.
        if other is not None and own != other:
            yield UserError(
                f"runs.{name}.adapter.{key}",
                f"got {own}, and the adapter in {section.adapter} has {other}",
                f"set it to {other}",
            )


def _balance(name: str, run: Run, config: Path | None) -> Iterator[UserError]:
    """Whether a run asks for a load-balancing loss that its base has not."""
    if not run.train.router_aux_loss or not config:
        return
    # Takes a while to import.
    from moray.model.balance import fault_of_balance
    from moray.model.load import empty_model

    if fault := fault_of_balance(empty_model(config.parent)):
        yield UserError(f"runs.{name}.{fault.path}", fault.problem, fault.remedy)


def _shapes(experiment: Experiment, model: str) -> Shapes | None:
    """The shapes of a base's weights; None if a hub model isn't downloaded yet.

    The shapes of a model from scratch that is no Llama aren't known before it is made.
    """
    section = experiment.models[model]
    if isinstance(section, ScratchModel):
        return llama_shapes(section)
    if not isinstance(section, PathModel | HubModel):
        return None
    folder = _folder(experiment, model)
    return shapes_in(folder) or None if folder else None


def _positions(experiment: Experiment, model: str, config: Path | None) -> int | None:
    """The maximum row length of a base; None if it isn't known.

    Raises:
        UserError: if its weights are quantized and can't be dequantized.
    """
    section = experiment.models[model]
    if isinstance(section, ScratchModel):
        return section.max_position_embeddings
    if not MODALITIES[plan.modality_of_model(experiment, model)].has_tokens:
        return None
    if config is None:
        return None
    quantization_in(config, f"models.{model}")
    return positions_in(config)


def _config(experiment: Experiment, model: str, ask_hub: bool) -> Path | None:
    """The `config.json` of a base that isn't from scratch; None if it can't be had.

    That of a hub model that isn't downloaded yet is fetched.
    """
    section = experiment.models[model]
    if not isinstance(section, PathModel | HubModel):
        return None
    if folder := _folder(experiment, model):
        return folder / "config.json"
    if isinstance(section, PathModel) or not ask_hub:
        return None
    # Takes a while to import.
    from moray.model.obtain import hub_config

    return hub_config(section.repo_id, section.revision)


def _folder(experiment: Experiment, model: str) -> Path | None:
    """The folder of a base; None if a hub model isn't downloaded yet."""
    section = experiment.models[model]
    if isinstance(section, PathModel):
        return Path(section.path)
    if not (folder := existing_model_folder(experiment, model)):
        return None
    # Takes a while to import.
    from moray.model.folder import whole_model_and_adapters

    return whole_model_and_adapters(folder)[0]
