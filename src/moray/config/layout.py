"""How a stage is executed: its workers and what they use, from the config and the machine."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from moray import machine
from moray.config.schema.base import execution_keys
from moray.config.schema.experiment import Experiment
from moray.config.schema.sections import Ray, WorkerRange
from moray.errors import UserError

# Sections of a run whose stages have workers; all but the first load models without training them.
Stage = Literal["train", "evaluate", "generate", "benchmarks"]

# Number of workers for `num_workers: auto` on a cluster without a GPU.
_CPU_WORKERS = 2
# Cores that a worker on the CPU uses before there is another one. Threads wait for each other at
# each operation, workers exchange all gradients at each step. Untried beyond two cores; others have
# a process for each socket (transformers' documentation), of 16 cores or more.
_MOST_THREADS = 16
# Threads of a single process on the CPU, unless it trains here; Snakemake lowers it to the
# available cores.
_THREADS_OF_ONE = 8


@dataclass(frozen=True)
class Layout:
    """Workers and GPUs of a stage.

    Attributes:
        num_workers: number of processes; of an elastic number, the maximum.
        num_gpus: GPUs that they use in total; 0 if they compute on the CPU.
        note: why available GPUs stay unused; None if none do.
        min_workers: minimum of an elastic number; None if the number is fixed.
    """

    num_workers: int
    num_gpus: int
    note: str | None = None
    min_workers: int | None = None

    @property
    def use_gpu(self) -> bool:
        """Whether each worker computes on a GPU."""
        return self.num_gpus > 0


def lay_out(ray: Ray, cores: float, gpus: float, batch_size: int | None = None) -> Layout:
    """The layout of a stage; `check_gpus` says whether there are enough GPUs for it.

    The workers divide `batch_size` rows evenly; None if any number of workers will do.
    """
    share = ray.shares.get("GPU", 1.0)
    room = math.floor(gpus / share)
    use_gpu = room > 0 if ray.use_gpu == "auto" else ray.use_gpu
    fewest = None
    if ray.num_workers == "auto":
        workers = max(1, room if use_gpu else _cpu_workers(ray, cores))
        workers = _largest_divisor(batch_size, workers) if batch_size else workers
    else:
        if isinstance(ray.num_workers, WorkerRange):
            fewest, workers = ray.num_workers.min, ray.num_workers.max
        else:
            workers = ray.num_workers
        use_gpu = use_gpu and (ray.use_gpu is True or (fewest or workers) <= room)
    num_gpus = math.ceil(workers * share) if use_gpu else 0
    note = _gpu_note(ray, workers, num_gpus, gpus, batch_size)
    return Layout(workers, num_gpus, note, fewest)


def lay_out_here(ray: Ray, batch_size: int | None = None, cores: int | None = None) -> Layout:
    """The layout of a stage on this machine, or on some of its cores; see `lay_out`.

    Of an elastic number, it has as many workers as there is room for, because a machine doesn't
    change.
    """
    cores, gpus = cores or machine.cores(), len(machine.gpus())
    if isinstance(ray.num_workers, WorkerRange):
        on_gpus = lay_out(ray, cores, gpus).use_gpu
        there, resource = (gpus, "GPU") if on_gpus else (cores, "CPU")
        room = math.floor(there / ray.shares.get(resource, 1.0))
        workers = min(max(room, ray.num_workers.min), ray.num_workers.max)
        ray = ray.model_copy(update={"num_workers": workers})
    return lay_out(ray, cores, gpus, batch_size)


def on_cores(ray: Ray, launcher: str, cores: int, batch_size: int | None = None) -> Ray:
    """The `ray` section of a stage that has some of this machine's cores: `auto` in numbers.

    It is as it was if the workers are elsewhere, or on GPUs, whose number is known once they start.
    """
    if not workers_are_here(ray, launcher) or lay_out_here(ray, batch_size).use_gpu:
        return ray
    cores = min(cores, machine.cores(), machine.cores_of_container() or cores)
    cpus = ray.resources_per_worker.get("CPU", "auto")
    if ray.num_workers == "auto":
        most = math.ceil(cores / _MOST_THREADS) if cpus == "auto" else math.floor(cores / cpus)
        workers = _largest_divisor(batch_size or most, max(1, most))
    else:
        workers = lay_out_here(ray, batch_size, cores).num_workers
    if cpus == "auto":
        cpus = float(max(1, cores // workers))
    shares = {**ray.resources_per_worker, "CPU": cpus}
    return ray.model_copy(update={"num_workers": workers, "resources_per_worker": shares})


def workers_are_here(ray: Ray, launcher: str) -> bool:
    """Whether the workers of a stage run on this machine, not on the nodes of a cluster."""
    return ray.address == "local" or launcher == "torchrun"


def for_stage(ray: Ray, num_workers: Literal["auto"] | int) -> Ray:
    """The `ray` section of a stage that has its own number of workers.

    Without a GPU, `auto` is one worker, which uses all cores and needs no start-up.
    """
    here = ray.address == "local"
    if num_workers == "auto" and here and (ray.use_gpu is False or not machine.gpus()):
        num_workers = 1
    return ray.model_copy(update={"num_workers": num_workers})


def check_gpus(layout: Layout, gpus: float, path: str) -> None:
    """Make sure that there are enough GPUs.

    Raises:
        UserError: if the layout needs more.
    """
    if layout.num_gpus > gpus:
        raise UserError(
            f"{path}.use_gpu",
            f"true with {layout.num_workers} workers needs {layout.num_gpus} GPUs, available: "
            f"{gpus:g}",
            "set it to auto, or lower num_workers",
        )


def _cpu_workers(ray: Ray, cores: float) -> int:
    return min(_CPU_WORKERS, int(cores / ray.shares.get("CPU", 1.0)))


def _largest_divisor(number: int, limit: int) -> int:
    return next(divisor for divisor in range(min(limit, number), 0, -1) if number % divisor == 0)


def _gpu_note(
    ray: Ray, workers: int, count: int, gpus: float, batch_size: int | None
) -> str | None:
    if count >= gpus or ray.use_gpu is False:
        return None
    if count == 0:
        return (
            f"using the CPU: {workers} workers need a GPU each, available: {gpus:g}; set "
            "ray.num_workers to auto to use GPUs"
        )
    if ray.num_workers == "auto":
        return (
            f"using {count} of {gpus:g} GPUs: more workers wouldn't divide {batch_size} rows evenly"
        )
    return f"using {count} of {gpus:g} GPUs, because ray.num_workers is {workers}"


def train_execution(experiment: Experiment, run: str, cores: int) -> dict[str, Any]:
    """The settings of a run's training that don't change its result.

    Args:
        cores: those that its job has.
    """
    section, ray = experiment.runs[run], on_cores_of(experiment, run, "train", cores)
    names = ("data", "train")
    sections = {name: execution_keys(getattr(section, name)) for name in names}
    sections["ray"] = execution_keys(ray)
    return {**sections, "proofs": section.proofs, "tracking": list(section.tracking)}


def evaluation_execution(
    experiment: Experiment, run: str, stage: Stage, cores: int
) -> dict[str, Any]:
    """The settings of evaluating or generating that don't change the result.

    Args:
        cores: those that its job has.
    """
    section, ray = experiment.runs[run], on_cores_of(experiment, run, stage, cores)
    return {
        stage: execution_keys(getattr(section, stage)),
        "launcher": section.train.launcher,
        "proofs": section.proofs,
        "ray": execution_keys(ray),
        "stall_timeout": section.train.stall_timeout,
    }


def store_execution(experiment: Experiment, run: str, cores: int | None) -> dict[str, Any]:
    """The settings of writing a store of a run that don't change it: where Ray's tasks run.

    Args:
        cores: the most cores of this machine that tasks use; None for all.
    """
    section = experiment.runs[run]
    return {
        "run": run,
        "cores": cores,
        "launcher": section.train.launcher,
        "ray": execution_keys(section.ray),
    }


def dataset_execution(
    experiment: Experiment, dataset: str, cores: int | None
) -> dict[str, Any] | None:
    """The same of reading a dataset: those of a run that trains on it, if one does.

    The first one with a cluster, if there is any.
    """
    runs = [run for run in experiment.runs if dataset in experiment.runs[run].datasets]
    executions = [store_execution(experiment, run, cores) for run in runs]
    return next(
        (
            one
            for one in executions
            if one["launcher"] == "ray" and one["ray"]["address"] != "local"
        ),
        executions[0] if executions else None,
    )


def on_cores_of(experiment: Experiment, run: str, stage: Stage, cores: int) -> Ray:
    """The `ray` section of a run's stage that has some of this machine's cores; see `on_cores`."""
    section = experiment.runs[run]
    ray, launcher = section.ray, section.train.launcher
    if stage == "train":
        return on_cores(ray, launcher, cores, section.train.global_batch_size)
    return on_cores(for_stage(ray, getattr(section, stage).num_workers), launcher, cores)


def threads(experiment: Experiment, run: str, stage: Stage, cores: int | None) -> int:
    """Cores of this machine that a stage uses; 1 if its workers are on a cluster.

    It is the same whatever has been done already, so that a run that continues computes as before.

    Args:
        cores: those that all stages share; None if jobs run on other machines.
    """
    layout = _here(experiment, run, stage)
    if layout is None:
        return 1
    if stage != "train":
        share = threads_of_one(cores if len(experiment.runs) > 1 else None)
        if layout.num_workers == 1 and not layout.use_gpu:
            return share
    elif cores is None:
        share = _THREADS_OF_ONE
    else:
        share = max(1, cores // experiment.concurrent(run))
    ray = on_cores_of(experiment, run, stage, share)
    workers = layout.num_workers if layout.use_gpu else ray.num_workers
    assert isinstance(workers, int)
    return math.ceil(workers * ray.shares.get("CPU", 1))


def threads_of_one(cores: int | None) -> int:
    """Threads of a job of a single process.

    Args:
        cores: those that it shares with another one; None if it is alone. Two at a time are faster
            than one after the other, because the imports of each take one core.
    """
    return min(_THREADS_OF_ONE, max(1, cores // 2)) if cores else _THREADS_OF_ONE


def gpus(experiment: Experiment, run: str, stage: Stage) -> int:
    """GPUs of this machine that a stage uses."""
    layout = _here(experiment, run, stage)
    return layout.num_gpus if layout else 0


def on_cluster(experiment: Experiment, run: str) -> bool:
    """Whether the workers of a run are on the nodes of a Ray cluster."""
    section = experiment.runs[run]
    return not workers_are_here(section.ray, section.train.launcher)


def num_workers_here(experiment: Experiment, run: str, stage: Stage, cores: int) -> int:
    """Workers that a stage has on this machine; 0 if they are on a cluster.

    Args:
        cores: those that its job has.
    """
    layout = _here(experiment, run, stage)
    if layout is None or layout.use_gpu:
        return layout.num_workers if layout else 0
    workers = on_cores_of(experiment, run, stage, cores).num_workers
    assert isinstance(workers, int)
    return workers


def _here(experiment: Experiment, run: str, stage: Stage) -> Layout | None:
    """The layout of a stage; None if its workers are on a cluster."""
    section = experiment.runs[run]
    if on_cluster(experiment, run):
        return None
    if stage == "train":
        return lay_out_here(section.ray, section.train.global_batch_size)
    return lay_out_here(for_stage(section.ray, getattr(section, stage).num_workers))


def new_tokens_error(path: str, strategy: str, tokens: str) -> UserError:
    """The error for an adapter on a model with new tokens; `tokens` says where they stand."""
    return UserError(
        path,
        f"can't be combined with train.strategy: {strategy}, because PEFT's layer for the rows of "
        f"{tokens} can't be sharded",
        "set strategy to ddp, or train the embeddings whole, unless both share their weights "
        "(modules_to_save: [embed_tokens, lm_head])",
    )
