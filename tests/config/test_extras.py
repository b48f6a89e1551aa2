"""A config that asks for an extra whose folder was deleted costs one line."""

from pathlib import Path
from typing import Any

import pytest
from small_config import faults

from moray.config import extras

SMOKE_TEST = {"runs.smoke-test": {"model": "tiny", "dataset": "modules"}}


@pytest.mark.parametrize(
    ("values", "path", "folder"),
    [
        (SMOKE_TEST, "runs.smoke-test", "smoke_test"),
        ({"runs.tuned.benchmarks.tasks": ["words"]}, "runs.tuned.benchmarks.tasks", "lm_eval"),
        (
            {"runs.tuned.generate.metrics": ["doctests"]},
            "runs.tuned.generate.metrics",
            "doctests",
        ),
        ({"runs.tuned.gguf": {}}, "runs.tuned.gguf", "gguf"),
        (
            {"runs.tuned.ray.storage_path": "s3://bucket/state"},
            "runs.tuned.ray.storage_path",
            "object_store",
        ),
        (
            {"runs.tuned.search": {"trials": 2, "space": {"train.seed": [1]}}},
            "runs.tuned.search",
            "search",
        ),
        ({"runs.tuned.train.strategy": "deepspeed"}, "runs.tuned.train.strategy", "deepspeed"),
        ({"runs.tuned.tracking": ["wandb"]}, "runs.tuned.tracking", "wandb"),
    ],
)
def test_what_is_not_there_is_named(
    values: dict[str, Any], path: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "_FOLDERS", tmp_path)
    assert faults(values) == [
        f"{path}: needs moray/extras/{folder}, which isn't there; put the folder back, "
        "or remove the key"
    ]
