"""A package for each task: what the rows of a store mean, and what else is the task's own.

The core imports their modules by name: of a task `task`, `evaluation`, for text `tokens`, and if
its facts say so `checks`; of the task that has what its modality shares, `base_model`, `export`,
`checks`, and if its facts say so `report`. See `config.tasks` and docs/tasks.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moray.config.tasks import module_of
from moray.provenance.manifest import read_manifest

if TYPE_CHECKING:
    # It imports PyTorch and the models of transformers, which tokenising doesn't need.
    from moray.tasks.interface import Task


def task_of(store: Path, settings: Mapping[str, Any]) -> Task:
    """The task that a store's manifest names, from `task` of its module `task`; see `Task`."""
    manifest = read_manifest(store)
    task: Task = module_of(manifest["task"], "task").task(manifest, settings)
    return task
