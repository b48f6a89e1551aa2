"""A config that asks for an extra whose folder was deleted costs one line."""

from pathlib import Path
from typing import Any

import pytest
from small_config import experiment_with

from moray.config import extras
from moray.errors import ConfigError

SMOKE_TEST = {"runs.smoke-test": {"model": "tiny", "dataset": "modules"}}


@pytest.mark.parametrize(
    ("values", "path", "folder"),
    [
        (SMOKE_TEST, "runs.smoke-test", "smoke_test"),
        ({"runs.tuned.benchmarks.tasks": ["words"]}, "runs.tuned.benchmarks.tasks", "lm_eval"),
        (
            {"runs.tuned.adapter.quantize_base": "8bit"},
            "runs.tuned.adapter.quantize_base",
            "quantized_base",
        ),
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
        ({"runs.tuned.train.optimizer": "adamw_8bit"}, "runs.tuned.train.optimizer", "adamw_8bit"),
        ({"runs.tuned.train.weights": "bf16"}, "runs.tuned.train.weights", "bf16_weights"),
        ({"runs.tuned.tracking": ["wandb"]}, "runs.tuned.tracking", "wandb"),
    ],
)
def test_what_is_not_there_is_named(
    values: dict[str, Any], path: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_with(values)
    monkeypatch.setattr(extras, "_FOLDERS", tmp_path)
    with pytest.raises(ConfigError) as raised:
        extras.check_all_there(experiment)
    assert str(raised.value) == (
        f"{path}: needs moray/extras/{folder}, which was deleted; put the folder back, or remove "
        "the key"
    )


def test_it_is_named_once_and_what_is_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_with({"defaults.gguf": {}, "defaults.tracking": ["wandb"]})
    monkeypatch.setattr(extras, "_FOLDERS", tmp_path)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb/__init__.py").touch()
    with pytest.raises(ConfigError, match=r"^runs\.base\.gguf: needs .* remove the key$"):
        extras.check_all_there(experiment)
