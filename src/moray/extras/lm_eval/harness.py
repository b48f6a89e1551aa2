"""The job of running the lm-evaluation-harness on workers: one model on each.

Source: Gao et al., "A framework for few-shot language model evaluation", 2024,
doi:10.5281/zenodo.12608602.
"""

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.metrics import mean
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.evaluator import evaluate
from numpy.typing import NDArray
from transformers import PreTrainedModel

from moray.errors import UserError, first_line
from moray.evaluate.bootstrap import BootstrapFigures, draws
from moray.evaluate.worker import BatchStore, EvaluationJob, for_each_model
from moray.extras.lm_eval.model import ResumableModel
from moray.extras.lm_eval.requirements import task_manager
from moray.tasks.language.tokenizer import load_tokenizer
from moray.workers.entry import Worker
from moray.workers.memory import is_out_of_memory

# The harness's name for the answers of a task that filters nothing.
_UNFILTERED = ",none"


@dataclass(frozen=True)
class Benchmark:
    """Tasks that are run on each model.

    Attributes:
        key: config key of the tasks, for errors.
        directory: the working directory of the workflow, to which paths in task files are relative.
        include_path: folder of the user's own tasks.
        num_fewshot: examples in front of each document; None for the tasks' own numbers.
        limit: maximum number of documents of each task.
        chat_template: model folder whose chat template the prompts are rendered with; None for
            plain text.
    """

    key: str
    directory: Path
    tasks: tuple[str, ...]
    include_path: str | None
    num_fewshot: int | None
    limit: int | None
    chat_template: Path | None
    bootstrap_samples: int


@dataclass(frozen=True)
class TaskFigures:
    """The figures of a model in a task or group.

    Attributes:
        figures: by the harness's name of the metric, and of the filter if there is one.
        facts: `num_fewshot`, `version`, and for each metric whether `higher_is_better`.
    """

    documents: int
    figures: BootstrapFigures
    facts: dict[str, Any] = field(default_factory=dict)


def benchmark_on_worker(
    job: EvaluationJob, worker: Worker, benchmark: Benchmark
) -> dict[str, dict[str, TaskFigures]]:
    """Run the tasks on this worker's models; returns the figures by model and task."""

    def figures(name: str, model: PreTrainedModel, store: BatchStore) -> dict[str, TaskFigures]:
        tokenizer = load_tokenizer(job.models[name])
        if benchmark.chat_template:
            tokenizer.chat_template = load_tokenizer(benchmark.chat_template).chat_template

        def scored_by(batch_size: int) -> ResumableModel:
            return ResumableModel(name, store, model, tokenizer, batch_size)

        return _figures(benchmark, job.batch_size, scored_by)

    with contextlib.chdir(benchmark.directory):
        return for_each_model(figures, job, worker)


def _figures(
    benchmark: Benchmark, batch_size: int, scored_by: Callable[[int], ResumableModel]
) -> dict[str, TaskFigures]:
    loaded, size = _load(benchmark), batch_size
    # The harness's own seeds.
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    torch.manual_seed(DEFAULT_OTHER_SEED)
    while (results := _evaluate(benchmark, loaded, scored_by(size))) is None:
        loaded, size = _load(benchmark), size // 2
    tasks = _task_figures(benchmark, results, loaded["tasks"])
    return tasks | _group_figures(benchmark, results, loaded["groups"], tasks)


def _load(benchmark: Benchmark) -> dict[str, Any]:
    """The tasks and groups, with the settings of the benchmark."""
    try:
        loaded: dict[str, Any] = task_manager(benchmark.include_path, benchmark.tasks).load(
            list(benchmark.tasks)
        )
    # Task files can raise anything: they name data, templates and code.
    except Exception as error:
        raise UserError(
            benchmark.key,
            f"can't load the tasks ({first_line(error)})",
            "check their files and data",
        ) from error
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise UserError(benchmark.key, f"{name} runs code that models write", "remove it")
        # Tasks that define 0 keep it, as with the harness's command.
        defined = task.get_config("num_fewshot")
        if defined != 0 and (benchmark.num_fewshot is not None or defined is None):
            task.set_config("num_fewshot", benchmark.num_fewshot or 0)
        task.set_fewshot_seed(DEFAULT_OTHER_SEED)
    return loaded


def _evaluate(
    benchmark: Benchmark, loaded: dict[str, Any], model: ResumableModel
) -> dict[str, Any] | None:
    """The harness's results; None if memory is too small for a batch size above 1."""
    try:
        results: dict[str, Any] = evaluate(
            model,
            loaded,
            limit=benchmark.limit,
            bootstrap_iters=0,
            apply_chat_template=benchmark.chat_template is not None,
            # As the harness's command does.
            fewshot_as_multiturn=benchmark.chat_template is not None,
        )
        return results
    except Exception as error:
        if model.batch_size == 1 or not is_out_of_memory(error):
            raise
    # After the handler, because the error keeps the memory of the failed call alive.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def _task_figures(
    benchmark: Benchmark, results: dict[str, Any], tasks: dict[str, Any]
) -> dict[str, TaskFigures]:
    by_task = {}
    for seed, name in enumerate(sorted(tasks)):
        aggregations = tasks[name].aggregation()
        values, resamples = {}, {}
        for (metric, key), documents in _by_document(results["samples"][name]).items():
            value = results["results"][name][f"{metric},{key}"]
            if isinstance(value, int | float | np.number):
                label = f"{metric},{key}".removesuffix(_UNFILTERED)
                values[label] = float(value)
                # Tasks have different resamples, so that those of a group are independent.
                resamples[label] = _resample(
                    documents, aggregations.get(metric, mean), benchmark.bootstrap_samples, seed
                )
        facts = {
            "num_fewshot": results["n-shot"][name],
            "version": results["versions"][name],
            "higher_is_better": results["higher_is_better"][name],
        }
        count = results["n-samples"][name]["effective"]
        by_task[name] = TaskFigures(count, BootstrapFigures(values, resamples), facts)
    return by_task


def _by_document(samples: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[Any]]:
    """Each document's contribution to a metric, by metric and filter."""
    values = defaultdict(list)
    for sample in samples:
        for metric in sample["metrics"]:
            values[metric, sample["filter"]].append(sample[metric])
    return values


def _resample(
    documents: list[Any], aggregation: Callable[[list[Any]], Any], samples: int, seed: int
) -> NDArray[np.float64]:
    """A metric of resampled documents, shape (samples,)."""
    units = draws(len(documents), samples, seed)
    if aggregation is mean:
        column = np.array(documents, np.float64)
        return np.array([column[numbers].mean() for numbers in units])
    return np.array([aggregation([documents[n] for n in numbers]) for numbers in units], np.float64)


def _group_figures(
    benchmark: Benchmark,
    results: dict[str, Any],
    groups: dict[str, Any],
    tasks: dict[str, TaskFigures],
) -> dict[str, TaskFigures]:
    """The figures of groups that have any: the harness's means of those of their tasks."""
    by_group = {}
    for name, means in results.get("groups", {}).items():
        labels = {
            key: key.removesuffix(_UNFILTERED)
            for key in means
            if "," in key and "_stderr," not in key
        }
        resamples = []
        for number in range(benchmark.bootstrap_samples):
            metrics = {
                task: {"sample_len": one.documents}
                | {
                    key: one.figures.resamples[label][number]
                    for key, label in labels.items()
                    if label in one.figures.resamples
                }
                for task, one in tasks.items()
            }
            resamples.append(groups[name].aggregate(metrics))
        by_group[name] = TaskFigures(
            means["sample_len"],
            BootstrapFigures(
                {label: float(means[key]) for key, label in labels.items()},
                {label: np.array([one[key] for one in resamples]) for key, label in labels.items()},
            ),
            {"higher_is_better": results["higher_is_better"].get(name, {})},
        )
    return by_group
