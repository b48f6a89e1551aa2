"""The config's schema: the only place that defines a key, its default and its meaning."""

from moray.config.schema.adapter import Adapter
from moray.config.schema.base import Section, execution_keys, is_execution_only, result_keys
from moray.config.schema.datasets import TextDataset
from moray.config.schema.experiment import BestRef, Dataset, Experiment, Run, RunRef, Sections
from moray.config.schema.gguf import Gguf
from moray.config.schema.image_datasets import ImageDataset
from moray.config.schema.models import (
    BaseModelSource,
    HubModel,
    PathModel,
    ScratchModel,
    TrainedTokenizer,
)
from moray.config.schema.preference import Preference
from moray.config.schema.push import Push
from moray.config.schema.search import Range, Search
from moray.config.schema.sections import (
    Augmentation,
    Benchmarks,
    Data,
    Evaluate,
    Export,
    Generate,
    Ray,
    WorkerRange,
)
from moray.config.schema.train import FSDP2, DeepSpeed, Train
from moray.config.schema.vision import ScratchVisionModel

__all__ = [
    "FSDP2",
    "Adapter",
    "Augmentation",
    "BaseModelSource",
    "Benchmarks",
    "BestRef",
    "Data",
    "Dataset",
    "DeepSpeed",
    "Evaluate",
    "Experiment",
    "Export",
    "Generate",
    "Gguf",
    "HubModel",
    "ImageDataset",
    "PathModel",
    "Preference",
    "Push",
    "Range",
    "Ray",
    "Run",
    "RunRef",
    "ScratchModel",
    "ScratchVisionModel",
    "Search",
    "Section",
    "Sections",
    "TextDataset",
    "Train",
    "TrainedTokenizer",
    "WorkerRange",
    "execution_keys",
    "is_execution_only",
    "result_keys",
]
