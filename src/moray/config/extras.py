"""Capabilities that most runs do without: each is a folder of `moray.extras`, and can be deleted.

The core names them here alone. It imports a module of theirs by `part`, where one is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from moray.errors import ConfigError, UserError

if TYPE_CHECKING:
    # The command lists its extras, and needs no pydantic for that.
    from moray.config.schema.datasets import Dataset
    from moray.config.schema.experiment import Experiment, Run

_FOLDERS = Path(__file__).parents[1] / "extras"

# The folder of each command of `moray`; its module `command` has it as a function `command`.
COMMANDS = {"chat": "chat", "doctor": "doctor", "import": "importing", "plan": "memory_plan"}
# That of each metric that isn't in `tasks/language/metrics`: its module `metric` has it as `METRIC`
# and `requirements` says by `missing` what it needs and is not here.
METRICS = {"doctests": "doctests"}
# That of each stage, whose rule is in `workflow/rules`; its module `stage` has a function of the
# stage's name. If the rule is of a run, `requirements` says by `faults` what is missing here.
STAGES = {"benchmark": "lm_eval", "gguf": "gguf", "search": "search", "smoke_test": "smoke_test"}
# That of each tracker; its module `tracker` opens a run by `open_run`.
TRACKERS = {"mlflow": "mlflow", "tensorboard": "tensorboard", "wandb": "wandb"}
# That of each strategy that isn't in `train/strategies`; its module `strategy` makes one.
STRATEGIES = {"deepspeed": "deepspeed"}
# That of each optimizer but AdamW; its module `optimizer` makes one by `make`, and the state of a
# parameter by `state_of`, unless it is AdamW's.
OPTIMIZERS = {"adafactor": "adafactor", "adamw_8bit": "adamw_8bit", "muon": "muon"}
# That of each number of bits of a frozen base; its module `base` has the `keywords` of transformers
# that load one, checks it by `check_quantized`, and prepares it for training.
QUANTIZED = {"4bit": "quantized_base", "8bit": "quantized_base"}
# That of each type of trained weights but fp32; its module `rounding` has their step as
# `step_in_fp32`, the norm of their gradients as `norm_of`, and says by `check_weights` which models
# it doesn't take.
WEIGHTS = {"bf16": "bf16_weights"}
# That of each way to find copies of rows but `exact`; its module `min_hash` has `NearCopies`.
COPIES = {"near": "near_copies"}
# That of each type of files that isn't in `tasks/language/sources/readers`; its module `sheet` has
# the rows of a table as `first_sheet`.
TABLES = {".xlsx": "xlsx"}
# That of each kind of object store, by the scheme of its URLs; its module of that name has the
# objects there as `Store`, and `bucket` the state of a run.
SCHEMES = {"gs": "object_store", "s3": "object_store"}


def is_there(folder: str) -> bool:
    """Whether the code of an extra is in this package."""
    return (_FOLDERS / folder / "__init__.py").is_file()


def part(folder: str, module: str) -> ModuleType:
    """A module of an extra."""
    return import_module(f"moray.extras.{folder}.{module}")


def check_all_there(experiment: Experiment) -> None:
    """Make sure that all extras that a config asks for are in this package.

    Raises:
        ConfigError: with a line for each that isn't.
    """
    faults: dict[str, UserError] = {}
    sections = [(f"runs.{name}", _asked_for(name, run)) for name, run in experiment.runs.items()]
    sections += [
        (f"datasets.{name}", _asked_for_by_dataset(dataset))
        for name, dataset in experiment.datasets.items()
    ]
    for path, asked in sections:
        for key, folder in asked:
            if not is_there(folder):
                fault = UserError(
                    f"{path}.{key}".rstrip("."),
                    f"needs moray/extras/{folder}, which was deleted",
                    "put the folder back, or remove the key",
                )
                faults.setdefault(folder, fault)
    if faults:
        raise ConfigError(list(faults.values()))


def _asked_for_by_dataset(dataset: Dataset) -> Iterator[tuple[str, str]]:
    way = getattr(dataset, "deduplicate", "")
    if way in COPIES:
        yield "deduplicate", COPIES[way]
    for ending in getattr(dataset, "endings", ()):
        if ending in TABLES:
            yield "", TABLES[ending]


def _asked_for(name: str, run: Run) -> Iterator[tuple[str, str]]:
    """Keys of a run, with the folders that they need."""
    from moray.config.schema.experiment import SMOKE_TEST_RUN

    if name == SMOKE_TEST_RUN:
        yield "", STAGES["smoke_test"]
    if run.benchmarks.tasks:
        yield "benchmarks.tasks", STAGES["benchmark"]
    for metric in run.generate.metrics:
        if metric in METRICS:
            yield "generate.metrics", METRICS[metric]
    if run.search:
        yield "search", STAGES["search"]
    if run.gguf:
        yield "gguf", STAGES["gguf"]
    for tracker in run.tracking:
        yield "tracking", TRACKERS[tracker]
    if run.train.strategy in STRATEGIES:
        yield "train.strategy", STRATEGIES[run.train.strategy]
    if run.train.optimizer in OPTIMIZERS:
        yield "train.optimizer", OPTIMIZERS[run.train.optimizer]
    if run.train.weights in WEIGHTS:
        yield "train.weights", WEIGHTS[run.train.weights]
    if run.adapter and run.adapter.quantize_base:
        yield "adapter.quantize_base", QUANTIZED[run.adapter.quantize_base]
    places = {
        "ray.storage_path": run.ray.storage_path,
        "train.resume_from_checkpoint": run.train.resume_from_checkpoint or "",
    }
    for key, place in places.items():
        scheme, separator, _ = place.partition("://")
        if separator and scheme in SCHEMES:
            yield key, SCHEMES[scheme]
