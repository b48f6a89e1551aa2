"""Checks across sections: names must exist, and runs must not form a cycle."""

from collections.abc import Iterator, Sequence

from moray.config import plan
from moray.config.adapters import faults_of_adapter
from moray.config.lineage import (
    candidates,
    faults_of_cycles,
    faults_of_name,
    faults_of_source_run,
    faults_of_start,
    faults_of_sweeps,
    faults_of_teacher,
)
from moray.config.schema.experiment import SMOKE_TEST_RUN, Experiment, Run
from moray.config.schema.models import RunModel, ScratchModel, ScratchVisionModel
from moray.config.schema.sections import WorkerRange
from moray.config.schema.strategies import STRATEGIES
from moray.config.tasks import (
    FORMATS,
    MODALITIES,
    MODEL_KEYS,
    TASKS,
    modalities_of_key,
    module_of,
    sequence_length,
)
from moray.errors import UserError


def check_references(experiment: Experiment) -> list[UserError]:
    """All faults that involve several sections."""
    problems = [*_shares(experiment), *_models(experiment), *_repositories(experiment)]
    searches = {name for name, run in experiment.runs.items() if run.search}
    rivals = candidates(experiment) | searches
    for name, run in experiment.runs.items():
        problems += faults_of_run(experiment, name, run)
        for dataset in run.datasets:
            problems += _splits(experiment, name, run, dataset, name in rivals)
    problems += faults_of_cycles(experiment)
    if not problems:
        problems += [*_blocks(experiment), *_tasks(experiment), *faults_of_sweeps(experiment)]
    return problems


def _folders(name: str, run: Run) -> Iterator[UserError]:
    """Faults of keys that need a folder that all nodes see, where there is an object store."""
    if name == SMOKE_TEST_RUN and run.ray.in_object_store:
        # The measurement doesn't see the files there.
        yield UserError(
            f"runs.{name}.ray.storage_path",
            f"got {run.ray.storage_path}, but the smoke test needs a folder",
            "set it to a folder that all nodes share",
        )
    if run.data.loader == "stream" and not run.data.stream_from and run.ray.in_object_store:
        yield UserError(
            f"runs.{name}.data.loader",
            f"stream reads from a folder, and ray.storage_path is {run.ray.storage_path}",
            "set data.stream_from to a URL, or loader to memory",
        )


def _shares(experiment: Experiment) -> Iterator[UserError]:
    for name, dataset in experiment.datasets.items():
        shares = {"validation": dataset.validation_share, "test": dataset.test_share}
        if sum(share for split, share in shares.items() if split not in dataset.given_splits) >= 1:
            yield UserError(
                f"datasets.{name}.test_share",
                f"got {dataset.test_share:g} with validation_share {dataset.validation_share:g}, "
                "expected a sum below 1, so that rows are left to train on",
                "lower one of them",
            )


def _repositories(experiment: Experiment) -> Iterator[UserError]:
    """Faults of runs that are uploaded to the same repository, and would replace each other."""
    owners: dict[str, str] = {}
    for name, run in experiment.runs.items():
        if run.push and (other := owners.setdefault(run.push.repo, name)) != name:
            yield UserError(
                f"runs.{name}.push.repo",
                f"got {run.push.repo}, to which run {other} is uploaded",
                "give each run a repository of its own",
            )


def _models(experiment: Experiment) -> Iterator[UserError]:
    """Faults of datasets that models name."""
    for name, model in experiment.models.items():
        path = f"models.{name}"
        if isinstance(model, ScratchModel):
            dataset = model.tokenizer.train_on
            texts = [name for name, facts in MODALITIES.items() if facts.has_tokens]
            yield from _dataset(experiment, f"{path}.tokenizer.train_on", dataset, texts)
        if isinstance(model, RunModel):
            yield from faults_of_source_run(experiment, path, model)
        for key in MODEL_KEYS:
            if (entry := getattr(model, key, None)) is not None:
                expected = modalities_of_key(key)
                if isinstance(model, ScratchModel | ScratchVisionModel | RunModel):
                    has_tokens = not isinstance(model, ScratchVisionModel)
                    expected = [
                        name for name in expected if MODALITIES[name].has_tokens == has_tokens
                    ]
                elif model.random_weights:
                    expected = [name for name in expected if MODALITIES[name].has_tokens]
                yield from _dataset(experiment, f"{path}.{key}", entry, expected)


def _dataset(
    experiment: Experiment, path: str, name: str, expected: Sequence[str]
) -> Iterator[UserError]:
    yield from faults_of_name(path, name, experiment.datasets, "datasets")
    if name in experiment.datasets and plan.modality_of_dataset(experiment, name) not in expected:
        modality = plan.modality_of_dataset(experiment, name)
        problem = f"got {name}, which has {modality}, expected {' or '.join(expected)}"
        yield UserError(path, problem, "choose another")


def faults_of_run(experiment: Experiment, name: str, run: Run) -> Iterator[UserError]:
    """Faults of a run that involve several of its sections, or other entries."""
    yield from _mixture(experiment, name, run)
    yield from faults_of_start(experiment, f"runs.{name}.model", run.model)
    yield from faults_of_teacher(experiment, name)
    workers = run.ray.num_workers
    if isinstance(workers, WorkerRange):
        yield from _elastic(f"runs.{name}", run, workers)
    elif workers != "auto" and run.train.global_batch_size % workers:
        yield UserError(
            f"runs.{name}.train.global_batch_size",
            f"got {run.train.global_batch_size}, expected a multiple of ray.num_workers "
            f"({run.ray.num_workers})",
            "change one of them",
        )
    yield from _copies(f"runs.{name}", run)
    yield from _engine(experiment, name, run)
    yield from _folders(name, run)
    if all(dataset in experiment.datasets for dataset in run.datasets):
        tasks = dict.fromkeys(
            [plan.task(experiment, name), plan.task_of_training(experiment, name)]
        )
        owners = [MODALITIES[TASKS[next(iter(tasks))].modality].task]
        owners += [task for task in tasks if TASKS[task].has_checks]
        for owner in owners:
            yield from module_of(owner, "checks").faults(f"runs.{name}", run)


def _elastic(path: str, run: Run, workers: WorkerRange) -> Iterator[UserError]:
    if run.train.launcher == "torchrun":
        yield UserError(
            f"{path}.ray.num_workers",
            "got a range, expected one number with train.launcher: torchrun, which doesn't change "
            "it during a run",
            "choose a number, or set launcher to ray",
        )
    if workers.min > workers.max:
        yield UserError(
            f"{path}.ray.num_workers.min",
            f"got {workers.min}, expected at most max ({workers.max})",
            "lower it",
        )
    if workers.max > run.train.global_batch_size:
        yield UserError(
            f"{path}.ray.num_workers.max",
            f"got {workers.max}, expected at most train.global_batch_size "
            f"({run.train.global_batch_size})",
            "change one of them",
        )


def _copies(path: str, run: Run) -> Iterator[UserError]:
    """A fault if workers can't be divided among the copies of a sharded model."""
    workers, size = run.ray.num_workers, run.train.fsdp2.shard_size
    if size is None or workers == "auto":
        return
    if isinstance(workers, WorkerRange):
        yield UserError(
            f"{path}.train.fsdp2.shard_size",
            f"got {size} with a range of workers, which it may not divide",
            "set ray.num_workers to one number, or remove it",
        )
    elif workers % size:
        yield UserError(
            f"{path}.train.fsdp2.shard_size",
            f"got {size}, expected a divisor of ray.num_workers ({workers})",
            "change one of them",
        )


def _mixture(experiment: Experiment, name: str, run: Run) -> Iterator[UserError]:
    path = f"runs.{name}.dataset"
    for dataset in run.datasets:
        yield from faults_of_name(path, dataset, experiment.datasets, "datasets")
    there = [dataset for dataset in run.datasets if dataset in experiment.datasets]
    tasks = {FORMATS[experiment.datasets[dataset].format].task: dataset for dataset in there}
    if len(tasks) > 1:
        yield UserError(
            path,
            "datasets of different tasks can't be mixed: "
            + ", ".join(f"{dataset} is for {task}" for task, dataset in tasks.items()),
            "train on them in separate runs",
        )
    elif len(there) > 1 and not TASKS[next(iter(tasks))].takes_mixtures:
        yield UserError(
            path,
            f"mixtures are for language datasets, and these are for {next(iter(tasks))}",
            "choose one of them",
        )


def _splits(
    experiment: Experiment, name: str, run: Run, dataset_name: str, is_candidate: bool
) -> Iterator[UserError]:
    """Faults of splits that a run needs and a dataset doesn't have."""
    dataset = experiment.datasets.get(dataset_name)
    chooses = run.train.early_stopping_patience or run.train.load_best_model_at_end
    none = dataset and "validation" not in dataset.given_splits and dataset.validation_share == 0
    if chooses and none:
        yield UserError(
            f"datasets.{dataset_name}.validation_share",
            f"got 0, but run {name} needs validation rows to find its best step",
            "set it to 0.05, for example, or remove early_stopping_patience and "
            "load_best_model_at_end",
        )
    elif is_candidate and none:
        yield UserError(
            f"datasets.{dataset_name}.validation_share",
            "got 0, but the best of several runs on this dataset is chosen by validation rows",
            "set it to 0.05, for example",
        )
    if dataset and "test" not in dataset.given_splits and dataset.test_share == 0:
        yield UserError(
            f"datasets.{dataset_name}.test_share",
            f"got 0, but run {name} needs test rows for its evaluation",
            "set it to 0.05, for example",
        )


def _engine(experiment: Experiment, name: str, run: Run) -> Iterator[UserError]:
    """Faults of keys of the engine that conflict."""
    if run.train.launcher == "torchrun" and run.data.loader == "stream":
        yield UserError(
            f"runs.{name}.train.launcher",
            "torchrun can't be combined with data.loader: stream, which needs Ray",
            "change one of them",
        )
    yield from _arithmetic(f"runs.{name}", run)
    if run.adapter:
        yield from faults_of_adapter(experiment, name, run, run.adapter)
    elif run.train.loraplus_lr_ratio:
        yield UserError(f"runs.{name}.train.loraplus_lr_ratio", "is for adapters only", "remove it")


def _arithmetic(path: str, run: Run) -> Iterator[UserError]:
    train, adapter = run.train, run.adapter
    if train.attention == "varlen" and train.precision == "fp32":
        yield UserError(
            f"{path}.train.attention",
            "varlen computes in bf16, so it can't be combined with train.precision: fp32",
            "change one of them",
        )
    if train.deterministic and train.attention == "flex":
        yield UserError(
            f"{path}.train.deterministic",
            "PyTorch doesn't document that the backward pass of attention: flex is deterministic",
            "set attention to auto, varlen or sdpa",
        )
    if train.deterministic and adapter and adapter.quantize_base == "4bit":
        yield UserError(
            f"{path}.train.deterministic",
            "bitsandbytes, which quantize_base: 4bit needs, doesn't document that its kernels are "
            "deterministic",
            "set one of them to its default",
        )
    if train.deterministic and train.optimizer == "adamw_8bit":
        yield UserError(
            f"{path}.train.deterministic",
            "bitsandbytes, which optimizer: adamw_8bit needs, doesn't document that its kernels "
            "are deterministic",
            "set one of them to its default",
        )
    if train.optimizer != "adamw" and not STRATEGIES[train.strategy].takes_any_optimizer:
        others = [name for name, strategy in STRATEGIES.items() if strategy.takes_any_optimizer]
        yield UserError(
            f"{path}.train.optimizer",
            f"{train.optimizer} can't be combined with strategy: {train.strategy}, which keeps the "
            "optimizer state in its own form",
            f"set strategy to {' or '.join(others)}, or optimizer to adamw",
        )
    facts = STRATEGIES[train.strategy]
    conflicts = {
        "train.precision: fp32": train.precision == "fp32",
        f"strategy: {train.strategy}, which keeps fp32 copies of them": facts.copies_weights,
        "an adapter, whose few weights are trained in fp32": adapter is not None,
        f"optimizer: {train.optimizer}, whose step is in fp32": train.optimizer
        in ("muon", "adafactor"),
    }
    for what in [what for what, is_set in conflicts.items() if is_set and train.weights == "bf16"]:
        yield UserError(
            f"{path}.train.weights",
            f"weights in bf16 can't be combined with {what}",
            "change one of them",
        )
    if train.deterministic and not STRATEGIES[train.strategy].deterministic:
        others = [name for name, strategy in STRATEGIES.items() if strategy.deterministic]
        yield UserError(
            f"{path}.train.deterministic",
            f"strategy: {train.strategy} is not documented to be deterministic on GPUs",
            f"set strategy to {' or '.join(others)}",
        )


def _tasks(experiment: Experiment) -> Iterator[UserError]:
    for name, run in experiment.runs.items():
        base, modality = experiment.base_model(name), plan.modality(experiment, name)
        of_model = plan.modality_of_model(experiment, base)
        if of_model != modality:
            dataset, key = next(iter(run.datasets)), MODALITIES[modality].model_key
            yield UserError(
                f"runs.{name}.model",
                f"got a model of {of_model}, but dataset {dataset} has {modality}",
                f"choose another model, or set models.{base}.{key}: {dataset}"
                if key
                else "choose another model or dataset",
            )
            continue
        named, task = plan.dataset_of_model(experiment, base), plan.task(experiment, name)
        if named and (of_named := FORMATS[experiment.datasets[named].format].task) != task:
            yield UserError(
                f"runs.{name}.model",
                f"got a model for {of_named}, but dataset {next(iter(run.datasets))} is for {task}",
                f"choose another model, or set models.{base}.{MODALITIES[modality].model_key}: "
                f"{next(iter(run.datasets))}",
            )


def _blocks(experiment: Experiment) -> Iterator[UserError]:
    for name, run in experiment.runs.items():
        model = experiment.models[experiment.base_model(name)]
        format = experiment.datasets[next(iter(run.datasets))].format
        longest = sequence_length(format, run.data.block_size)
        if isinstance(model, ScratchModel) and longest > (most := model.max_position_embeddings):
            yield UserError(
                f"runs.{name}.data.block_size",
                f"makes sequences of {longest} tokens, expected at most {most}, the "
                "max_position_embeddings of its model",
                "change one of them",
            )
