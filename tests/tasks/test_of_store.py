"""Tasks are found by the name in a store's manifest, and imported only then."""

import subprocess
import sys
from pathlib import Path

from moray.provenance.manifest import read_manifest
from moray.tasks.images.task import ImageTask
from moray.tasks.interface import Task
from moray.tasks.language.task import LanguageTask
from moray.tasks.of_store import _TASKS, task_of
from moray.tasks.preference.task import PreferenceTask

TASKS: dict[str, type[Task]] = {
    "images": ImageTask,
    "language": LanguageTask,
    "preference": PreferenceTask,
}


def test_each_task_has_a_class() -> None:
    places = {name: f"{task.__module__}:{task.__name__}" for name, task in TASKS.items()}
    assert places.items() <= _TASKS.items()


def test_the_manifest_names_the_task(small: Path) -> None:
    task = task_of(small / "tokens", {})
    assert type(task) is LanguageTask
    assert task.row_length == read_manifest(small / "tokens")["block_size"]


def test_training_is_imported_without_any_task() -> None:
    code = f"""
import sys
for task in {list(TASKS)}:
    sys.modules["moray.tasks." + task] = None  # importing it fails
import moray.train.driver, moray.train.loop
"""
    subprocess.run([sys.executable, "-c", code], check=True)
