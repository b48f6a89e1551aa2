"""From a checkpoint to a model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from moray.errors import UserError
from moray.train import checkpoint
from moray.train.export import trained_model
from moray.train.job import Place
from moray.train.worker import train


def test_the_model_has_the_weights_of_the_checkpoint(
    make_job: Any, alone: Place, small: Path
) -> None:
    job = make_job(max_steps=2)
    train(job, alone)
    last = checkpoint.path_of(checkpoint.folder_of(job.work), 2)
    exported = trained_model(small / "model", last).state_dict()
    for name, value in load_file(last / "model.safetensors").items():
        assert torch.equal(exported[name], value)


def test_a_damaged_checkpoint_is_refused(make_job: Any, alone: Place, small: Path) -> None:
    job = make_job(max_steps=2)
    train(job, alone)
    last = checkpoint.path_of(checkpoint.folder_of(job.work), 2)
    (last / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="rerun with --forcerun finetune_run"):
        trained_model(small / "model", last)
