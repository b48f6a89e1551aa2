"""Fully sharded data parallel; what it computes is held to a single process in test_equality."""

from pathlib import Path

import pytest

from moray.config.schema import Train
from moray.errors import UserError
from moray.model.load import load_model
from moray.tasks.language.loss import TokenLoss
from moray.train.engine.strategies.fsdp2 import FullyShardedStrategy
from moray.workers.worker import Worker


def test_an_architecture_that_names_no_blocks_is_refused(model_folder: Path, alone: Worker) -> None:
    model = load_model(model_folder)
    model._no_split_modules = None
    with pytest.raises(UserError) as caught:
        FullyShardedStrategy(Train(strategy="fsdp2"), alone).wrap(TokenLoss(model, True))
    assert str(caught.value) == (
        "train.strategy: fsdp2 shards a model block by block, but transformers doesn't say "
        "which modules of a llama model are its blocks; choose ddp"
    )
