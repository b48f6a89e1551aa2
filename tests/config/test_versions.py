"""The version of a stage's results, by which the workflow knows them."""

import pytest

from moray.config import tasks, versions
from moray.config.tasks import TaskFacts
from moray.config.versions import version_of


def test_a_version_is_of_the_stage_and_of_its_task_where_tasks_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(versions.RESULTS, "finetune images", 7)
    monkeypatch.setitem(versions.RESULTS, "generate chrf", 3)
    assert version_of("finetune", "images") == "finetune images 7"
    assert version_of("finetune", "language") == f"finetune language {_of('finetune language')}"
    assert version_of("export", "text") == f"export text {_of('export text')}"
    assert version_of("generate", "chrf") == f"generate {_of('generate')}, generate chrf 3"
    assert version_of("generate", "doctests") == f"generate {_of('generate')}"


def test_a_task_of_ones_own_has_the_version_of_the_task_that_it_builds_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = TaskFacts("text", scored="documents", headline="bits_per_byte")
    monkeypatch.setitem(tasks.TASKS, "infill", facts)  # type: ignore[misc]
    assert version_of("finetune", "infill") == f"finetune language {_of('finetune language')}"


def _of(row: str) -> int:
    return versions.RESULTS[row]
