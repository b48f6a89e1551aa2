"""The task of docs/tasks-rows.md, made from the page's code and registered; workers import it."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import fleet

from moray.train.spec import RunSpec
from moray.workers.entry import Worker

PAGE = Path(__file__).parents[1] / "docs/tasks-rows.md"

example: Any = ModuleType("moray.tasks.classification.task")
sys.modules[example.__name__] = example
for _block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
    exec(_block, vars(example))


def train_each(jobs: list[RunSpec], worker: Worker) -> None:
    """Train jobs whose task is that of the page."""
    fleet.train_each(jobs, worker)
