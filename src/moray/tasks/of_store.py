"""The task of a store."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from moray.provenance.manifest import read_manifest
from moray.tasks.interface import Task

# By name, so that a run imports its own task and depends on no other's code; see `config.code`.
_TASKS = {
    "images": "moray.tasks.images.task:ImageTask",
    "language": "moray.tasks.language.task:LanguageTask",
    "preference": "moray.tasks.preference.task:PreferenceTask",
}


def task_of(store: Path, settings: Mapping[str, Any]) -> Task:
    """The task that a store's manifest names.

    Args:
        store: the store.
        settings: the sections of the run's config that only its task reads, by name.
    """
    manifest = read_manifest(store)
    kind: type[Task] = resolve_name(_TASKS[manifest["task"]])
    return kind(manifest, settings)
