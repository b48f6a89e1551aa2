"""From a checkpoint to a model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tensors_of

from moray.config.schema import Adapter
from moray.errors import UserError
from moray.model.load import load_model
from moray.storage.paths import folder_of, path_of
from moray.train.checkpoints.trained_model import trained_model
from moray.train.loop import train
from moray.workers.worker import Worker


def trained(job: Any, worker: Worker) -> Path:
    """The last checkpoint of a job of two steps."""
    train(job, worker)
    return path_of(folder_of(job.work), 2)


def test_the_model_has_the_weights_of_the_checkpoint(
    make_job: Any, alone: Worker, small: Path
) -> None:
    last = trained(make_job(max_steps=2), alone)
    exported = trained_model(small / "model", last, None)
    start = load_model(small / "model").state_dict()
    held = tensors_of(last)
    for name, weights in exported.named_parameters():
        assert torch.equal(weights, held[name])
        assert not torch.equal(weights, start[name])


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}])
def test_a_model_with_adapters_has_theirs_and_the_base_it_started_from(
    make_job: Any, alone: Worker, small: Path, settings: dict[str, Any]
) -> None:
    adapter = Adapter(rank=2, **settings)
    last = trained(make_job(max_steps=2, adapter=adapter), alone)
    exported = trained_model(small / "model", last, adapter)
    start = load_model(small / "model").state_dict()
    held = tensors_of(last)
    added = {name for name, weights in exported.named_parameters() if "lora" in name}
    assert {name for name in held if "/" not in name} == added
    for name, weights in exported.named_parameters():
        expected = held[name] if name in added else start[name.replace(".base_layer", "")]
        assert torch.equal(weights, expected)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "manifest.json"])
def test_a_damaged_checkpoint_is_refused(
    make_job: Any, alone: Worker, small: Path, name: str
) -> None:
    last = trained(make_job(max_steps=2), alone)
    (last / name).write_bytes(b"")
    with pytest.raises(UserError, match="rerun with --forcerun finetune_run"):
        trained_model(small / "model", last, None)
