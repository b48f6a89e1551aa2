"""What jobs ask for on other machines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from small_config import experiment_with

from moray.config.schema.models import HubModel, PathModel
from moray.provenance.manifest import MANIFEST
from moray.stages.resources import Job, unread_model_mb

PARAMETERS = 5_000_000
# Of a job with one thread and without a model; of one with workers, besides theirs.
ALONE, DRIVER, WORKER = 2_700, 4_000, 2_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The manifest of a model of a square matrix, in 16 bits."""
    folder = tmp_path_factory.mktemp("model")
    weights = np.zeros((5, PARAMETERS // 5), np.float16)
    save_file({"model.layers.0.mlp.up_proj.weight": weights}, folder / "model.safetensors")
    (folder / MANIFEST).write_text("{}")
    return str(folder / MANIFEST)


def job(inputs: tuple[str, ...], config: dict[str, Any] | None = None, **settings: Any) -> Job:
    values = {f"runs.tuned.{key}": value for key, value in (config or {}).items()}
    return Job(experiment_with(values), inputs, **{"threads": 1, "run": "tuned", **settings})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # Weights, gradients and two moments in fp32, and half of it for activations.
        ({"ray.num_workers": 2}, DRIVER + 2 * (WORKER + 1.5 * 16 * 5)),
        # Each of two workers has half of them.
        (
            {"ray.num_workers": 2, "train.strategy": "fsdp2"},
            DRIVER + 2 * (WORKER + 1.5 * 8 * 5),
        ),
        # GPUs have the rest; here are the weights while they are read, and while they are saved.
        ({"ray.num_workers": 2, "ray.use_gpu": True}, DRIVER + 2 * (WORKER + 2 * 4 * 5)),
        ({"ray.num_workers": 4, "ray.address": "10.0.0.1:6379"}, DRIVER),
        ({"train.mem_mb": 64_000}, 64_000),
    ],
)
def test_a_training_asks_for_the_memory_of_its_workers(
    config: dict[str, Any], expected: float, model: str
) -> None:
    config = {"ray.use_gpu": False, **config}
    assert job((model,), config, workers="train").memory_mb() == expected


def test_a_stage_that_loads_a_model_asks_for_it_in_fp32_and_for_the_proofs(model: str) -> None:
    loaded = 3 * 4 * 5
    assert job((model,)).memory_mb() == ALONE + loaded
    scoring = job((model,), {"ray.use_gpu": False}, workers="evaluate")
    assert scoring.memory_mb() == DRIVER + WORKER + loaded
    assert job((model,), least_mb=32_000).memory_mb() == 32_000


def test_time_grows_with_what_is_read_and_shrinks_with_threads(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    with file.open("wb") as rows:
        rows.truncate(6 * 10**9)
    assert job((str(file),)).minutes(60) == 60
    assert job((str(file),)).minutes(60, mb_per_minute=15) == 60 + 400
    assert job((str(file),), threads=4).minutes(60, mb_per_minute=15) == 60 + 100
    training = job((str(file),), {"train.runtime": 90}, workers="train")
    assert training.minutes(60, mb_per_minute=15) == 90


def test_a_training_asks_for_room_for_its_checkpoints(model: str) -> None:
    """Weights and two moments in fp32; those that are kept, the best one, and one in progress."""
    inputs = 5 * (2 * PARAMETERS + 2) / 1e6
    asked = job((model,), {"train.save_total_limit": 3}, workers="train").disk_mb()
    assert asked == pytest.approx(2_000 + inputs + 5 * 12 * PARAMETERS / 1e6, abs=2)


def test_what_is_not_there_yet_is_asked_for_by_the_error_that_snakemake_knows() -> None:
    file = "./nobody/makes/this/manifest.json"
    with pytest.raises(FileNotFoundError) as raised:
        job((file,)).memory_mb()
    assert raised.value.filename == file


def test_a_base_model_asks_for_memory_before_it_is_in_a_stages_form(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(10**7))
    path = PathModel(source="path", path=str(tmp_path))
    assert unread_model_mb(path, [str(weights)]) == 2_000 + 6 * 10
    hub = HubModel(source="hub", repo_id="a/b", revision="0" * 40)
    assert unread_model_mb(hub, []) == 32_000
