"""The task of a store: the one place that knows all tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moray.provenance.manifest import read_manifest
from moray.tasks.images.task import ImageTask
from moray.tasks.interface import Task
from moray.tasks.language.task import LanguageTask
from moray.tasks.preference.task import PreferenceTask

_TASKS: dict[str, type[Task]] = {
    "images": ImageTask,
    "language": LanguageTask,
    "preference": PreferenceTask,
}


def task_of(store: Path, settings: Mapping[str, Any]) -> Task:
    """The task that a store's manifest names.

    Args:
        store: the store.
        settings: the sections of the run's config that only its task reads, by name.
    """
    manifest = read_manifest(store)
    return _TASKS[manifest["task"]](manifest, settings)
