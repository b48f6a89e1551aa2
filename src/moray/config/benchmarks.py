"""What a run's benchmarks depend on."""

from pathlib import Path
from typing import Any

from moray.config.layout import workers_are_here
from moray.config.plan import interval_config, without_braces
from moray.config.schema import Experiment, result_keys
from moray.errors import UserError


def benchmark_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's benchmarks depend on, besides models and task files."""
    section = experiment.runs[run].benchmarks
    return dict(sorted({**result_keys(section), **interval_config(experiment, run)}.items()))


def benchmark_files(experiment: Experiment, run: str) -> list[str]:
    """The files in the folder of a run's own benchmark tasks.

    Raises:
        UserError: if the folder doesn't exist, or if workers wouldn't see it.
    """
    whole, key = experiment.runs[run], f"runs.{run}.benchmarks.include_path"
    section = whole.benchmarks
    if not section.tasks or section.include_path is None:
        return []
    if whole.ray.in_object_store and not workers_are_here(whole.ray, whole.train.launcher):
        raise UserError(
            key,
            "task files need a folder that all nodes share, but ray.storage_path is a URL",
            "set ray.storage_path to a folder that all nodes share",
        )
    folder = Path(section.include_path)
    if not folder.is_dir():
        raise UserError(
            key,
            f"got {folder}, expected a folder with task files",
            "check the path; it is relative to the working directory",
        )
    # Python writes the last ones when it runs code of a task.
    files = [
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return sorted(without_braces(str(path), key) for path in files)
