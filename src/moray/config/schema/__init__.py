"""The config's schema: the only place that defines a key, its default and its meaning."""

from moray.config.schema.adapter import Adapter
from moray.config.schema.base import Section, execution_keys, is_execution_only, result_keys
from moray.config.schema.datasets import (
    Dataset,
    HubDataset,
    LocalFiles,
    PythonStdlib,
    Synthetic,
    Url,
)
from moray.config.schema.experiment import Experiment, Run, RunRef, Sections
from moray.config.schema.models import HubModel, PathModel, ScratchModel, TrainedTokenizer
from moray.config.schema.preference import Preference
from moray.config.schema.sections import Data, Evaluate, Export, Generate, Ray
from moray.config.schema.train import FSDP2, DeepSpeed, Train

__all__ = [
    "FSDP2",
    "Adapter",
    "Data",
    "Dataset",
    "DeepSpeed",
    "Evaluate",
    "Experiment",
    "Export",
    "Generate",
    "HubDataset",
    "HubModel",
    "LocalFiles",
    "PathModel",
    "Preference",
    "PythonStdlib",
    "Ray",
    "Run",
    "RunRef",
    "ScratchModel",
    "Section",
    "Sections",
    "Synthetic",
    "Train",
    "TrainedTokenizer",
    "Url",
    "execution_keys",
    "is_execution_only",
    "result_keys",
]
