"""The task of a store: the one place that knows all tasks."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from moray.provenance.manifest import read_manifest
from moray.tasks.images.task import ImageTask
from moray.tasks.interface import Task
from moray.tasks.language.task import LanguageTask

_TASKS: dict[str, type[Task]] = {
    "images": ImageTask,
    "language": LanguageTask,
}


def task_of(store: Path, settings: Mapping[str, Any] = MappingProxyType({})) -> Task:
    """The task that a store's manifest names.

    Args:
        store: the store.
        settings: sections of the config that the batches of training depend on, by name.
    """
    manifest = read_manifest(store)
    return _TASKS[manifest["task"]](manifest, settings)
