"""What scores, samples and benchmarks depend on, and what they use of the machine."""

import math
from typing import Any, Literal

from moray.config.layout import Layout, for_stage, lay_out_here
from moray.config.plan.data import section_of_task
from moray.config.plan.rows import store_config
from moray.config.plan.training import runs_here
from moray.config.schema import Experiment, execution_keys, result_keys

Stage = Literal["evaluate", "generate", "benchmarks"]

# Threads of a single process on the CPU; Snakemake lowers it to the available cores.
_THREADS_OF_ONE = 8


def evaluate_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's scores depend on, besides models and tokens."""
    section = experiment.runs[run]
    config = {"datasets": list(section.datasets), **result_keys(section.evaluate)}
    config |= section_of_task(experiment, run)
    return dict(sorted(config.items()))


def generate_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's samples depend on, besides models and prompts."""
    section = experiment.runs[run]
    datasets = {name: store_config(experiment, run, name) for name in section.datasets}
    config = {"datasets": datasets, **result_keys(section.generate)}
    if section.generate.metrics:
        config |= interval_config(experiment, run)
    return dict(sorted(config.items()))


def predict_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's predictions depend on, besides models and images."""
    section = experiment.runs[run].generate
    return {"num_samples": section.num_samples, "precision": section.precision}


def interval_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What the intervals of a run's figures depend on."""
    section = experiment.runs[run].evaluate
    return {"bootstrap_samples": section.bootstrap_samples, "confidence": section.confidence}


def evaluation_execution(experiment: Experiment, run: str, stage: Stage) -> dict[str, Any]:
    """The settings of evaluating or generating that don't change the result."""
    section = experiment.runs[run]
    return {
        stage: execution_keys(getattr(section, stage)),
        "launcher": section.train.launcher,
        "ray": execution_keys(section.ray),
        "stall_timeout": section.train.stall_timeout,
    }


def evaluation_threads(experiment: Experiment, run: str, stage: Stage) -> int:
    """Cores of this machine that evaluating or generating uses; 1 if it is done on a cluster."""
    if not runs_here(experiment, run):
        return 1
    layout = _evaluation_layout(experiment, run, stage)
    if layout.num_workers == 1 and not layout.use_gpu:
        return _THREADS_OF_ONE
    cores = experiment.runs[run].ray.resources_per_worker.get("CPU", 1)
    return math.ceil(layout.num_workers * cores)


def evaluation_gpus(experiment: Experiment, run: str, stage: Stage) -> int:
    """GPUs of this machine that evaluating or generating uses."""
    here = runs_here(experiment, run)
    return _evaluation_layout(experiment, run, stage).num_gpus if here else 0


def _evaluation_layout(experiment: Experiment, run: str, stage: Stage) -> Layout:
    section = experiment.runs[run]
    return lay_out_here(for_stage(section.ray, getattr(section, stage).num_workers))
