"""The config's schema: the only place where a key, its default and its meaning stand."""

from moray.config.schema.base import Model, execution_keys, is_execution_only, result_keys
from moray.config.schema.datasets import Dataset, LocalFiles, PythonStdlib
from moray.config.schema.experiment import Experiment, Run, RunRef, Sections
from moray.config.schema.models import HubModel, PathModel, ScratchModel, TrainedTokenizer
from moray.config.schema.sections import Data, Evaluate, Generate, Ray, Train

__all__ = [
    "Data",
    "Dataset",
    "Evaluate",
    "Experiment",
    "Generate",
    "HubModel",
    "LocalFiles",
    "Model",
    "PathModel",
    "PythonStdlib",
    "Ray",
    "Run",
    "RunRef",
    "ScratchModel",
    "Sections",
    "Train",
    "TrainedTokenizer",
    "execution_keys",
    "is_execution_only",
    "result_keys",
]
