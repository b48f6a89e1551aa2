"""Tasks are found by the name in a store's manifest, and imported only then."""

import subprocess
import sys
from pathlib import Path

import pytest

from moray.config.tasks import TASKS
from moray.provenance.manifest import read_manifest
from moray.tasks.language.task import LanguageTask
from moray.train.task import task_of


def test_the_manifest_names_the_task(small: Path) -> None:
    task = task_of(small / "tokens", {})
    assert type(task) is LanguageTask
    assert task.row_length == read_manifest(small / "tokens")["block_size"]


@pytest.mark.long
def test_training_is_imported_without_any_task() -> None:
    code = f"""
import sys
for task in {list(TASKS)}:
    sys.modules["moray.tasks." + task] = None  # importing it fails
import moray.train.driver, moray.train.loop

"""
    subprocess.run([sys.executable, "-c", code], check=True)
