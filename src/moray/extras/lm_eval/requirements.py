"""Requirements of benchmarks, known without the harness, which takes seconds to import."""

import difflib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from moray.config.schema.experiment import Run
from moray.config.schema.sections import Benchmarks
from moray.errors import UserError

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


def faults(name: str, run: Run) -> Iterator[UserError]:
    """Why the tasks of a run can't be used here."""
    yield from benchmark_faults(name, run.benchmarks)


def benchmark_faults(run: str, section: Benchmarks) -> Iterator[UserError]:
    """Why the tasks of a run can't be used here: the package is missing, or a task is unknown."""
    key = f"runs.{run}.benchmarks.tasks"
    if not find_spec("lm_eval"):
        yield UserError(key, "lm-eval is not installed", "pip install 'moray[benchmarks]'")
        return
    tasks = task_manager(section.include_path, tuple(section.tasks)).all_tasks
    for task in sorted({*section.tasks} - {*tasks}):
        near = difflib.get_close_matches(task, tasks, n=1)
        where = f"in {section.include_path} or " if section.include_path else ""
        yield UserError(
            key,
            f"got {task}, expected a task, group or tag {where}of lm-evaluation-harness",
            f"did you mean {near[0]}?" if near else "see lm_eval ls tasks",
        )


@cache
def task_manager(include_path: str | None, tasks: Sequence[str]) -> "TaskManager":
    """The harness's index of its tasks, and of those in a folder, which come first.

    Its own tasks, whose index takes seconds to make, are left out if none is needed.
    """
    # Takes seconds to import.
    from lm_eval.tasks import TaskManager

    if include_path is not None:
        own = TaskManager(include_path=include_path, include_defaults=False)
        if {*tasks} <= {*own.all_tasks}:
            return own
    return TaskManager(include_path=include_path)
