"""What the training of a run depends on, and what it uses of the machine."""

import math
from typing import Any

from moray.config.layout import Layout, lay_out_here, workers_are_here
from moray.config.plan.data import section_of_task
from moray.config.schema import Experiment, execution_keys, result_keys


def train_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's weights depend on, besides its rows and its start."""
    section = experiment.runs[run]
    adapter = section.adapter and result_keys(section.adapter)
    config = {
        "adapter": adapter,
        "datasets": section.datasets,
        "train": result_keys(section.train),
    }
    return dict(sorted((config | section_of_task(experiment, run)).items()))


def train_execution(experiment: Experiment, run: str) -> dict[str, Any]:
    """The settings of a run's training that don't change its result."""
    section = experiment.runs[run]
    names = ("data", "ray", "train")
    sections = {name: execution_keys(getattr(section, name)) for name in names}
    return {**sections, "tracking": list(section.tracking)}


def train_threads(experiment: Experiment, run: str) -> int:
    """Cores of this machine that a run's workers use; 1 if they are on a cluster."""
    if not runs_here(experiment, run):
        return 1
    cores = experiment.runs[run].ray.resources_per_worker.get("CPU", 1)
    return math.ceil(_train_layout(experiment, run).num_workers * cores)


def train_gpus(experiment: Experiment, run: str) -> int:
    """GPUs of this machine that a run's workers use."""
    return _train_layout(experiment, run).num_gpus if runs_here(experiment, run) else 0


def runs_here(experiment: Experiment, run: str) -> bool:
    """Whether a run's workers are on this machine."""
    section = experiment.runs[run]
    return workers_are_here(section.ray, section.train.launcher)


def _train_layout(experiment: Experiment, run: str) -> Layout:
    section = experiment.runs[run]
    return lay_out_here(section.ray, section.train.global_batch_size)
