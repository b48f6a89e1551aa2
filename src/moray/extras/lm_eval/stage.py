"""Run benchmarks on a run's model and on its base."""

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moray.config.schema.sections import Benchmarks
from moray.console import say
from moray.errors import ConfigError, UserError
from moray.evaluate.bootstrap import with_intervals
from moray.evaluate.driver import (
    start_evaluation_workers,
    with_interval,
)
from moray.extras.lm_eval.requirements import benchmark_faults
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import MANIFEST, sha256_file
from moray.tasks.language.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from moray.extras.lm_eval.harness import TaskFigures


def benchmark(
    run: str,
    base: Path,
    tuned: Path,
    files: list[Path],
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
) -> None:
    """Write `benchmarks.json`.

    The batches that a killed process has on disk aren't scored again.

    Args:
        files: files of the user's own tasks.
        cfg: the keys of the `benchmarks` section that the result depends on, and those of
            `evaluate` for the intervals.
        code: the version of what decides on the result.

    Raises:
        ConfigError: if the harness is not installed or doesn't know a task.
        UserError: if prompts shall have the chat template of a model that has none.
    """
    settings = {key: cfg[key] for key in cfg if key in Benchmarks.model_fields}
    if faults := list(benchmark_faults(run, Benchmarks(**settings))):
        raise ConfigError(faults)
    if cfg["chat_template"] and load_tokenizer(tuned).chat_template is None:
        raise UserError(
            f"runs.{run}.benchmarks.chat_template",
            "got true, but the run's model has no chat template",
            f"set it to false, or set runs.{run}.data.chat_template",
        )
    # Needs the optional package, which is there now.
    from moray.extras.lm_eval.harness import Benchmark, benchmark_on_worker

    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    with start_evaluation_workers("benchmarks", run, output, cfg, execution, code) as workers:
        benchmark = Benchmark(
            key=f"runs.{run}.benchmarks.tasks",
            directory=Path.cwd(),
            tasks=tuple(cfg["tasks"]),
            include_path=cfg["include_path"],
            num_fewshot=cfg["num_fewshot"],
            limit=cfg["limit"],
            chat_template=models["tuned"] if cfg["chat_template"] else None,
            bootstrap_samples=cfg["bootstrap_samples"],
        )
        harness = version("lm-eval")
        results = workers.run(
            partial(benchmark_on_worker, benchmark=benchmark),
            models,
            (),
            decided_by=[harness, {str(file): sha256_file(file) for file in files}],
        )
        figures = {name: by_task for result in results for name, by_task in result.items()}
        tasks = {
            name: _compare(first, figures["tuned"][name], cfg["confidence"])
            for name, first in figures["base"].items()
        }
        result = {
            "confidence": cfg["confidence"],
            "resampled": "documents",
            "harness": harness,
            "tasks": tasks,
        }
        write_sealed(output, result, [base / MANIFEST, tuned / MANIFEST, *files])
    # A group has one line instead of one for each task; a tag only stands for tasks.
    for name in [task for task in cfg["tasks"] if task in tasks] or tasks:
        for metric in tasks[name]["base"]:
            before, after = (with_interval(tasks[name][model][metric]) for model in models)
            say(f"{run}: {name} {metric} {before} before, {after} after")


def _compare(base: "TaskFigures", tuned: "TaskFigures", confidence: float) -> dict[str, Any]:
    return {
        "documents": base.documents,
        **base.facts,
        **with_intervals(base.figures, tuned.figures, confidence),
    }
