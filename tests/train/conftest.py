"""A small experiment to train in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_model import MODEL

from moray.config.schema import Data, Train, result_keys
from moray.corpus.dataset import write_dataset
from moray.corpus.document import Document
from moray.corpus.sources.python_stdlib import functions
from moray.stages.base_model import base_model
from moray.stages.tokenize import tokenize
from moray.train.job import Job, Place

Make = Callable[..., Job]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, a Hugging Face folder, and `tokens`, a store of functions."""
    folder = tmp_path_factory.mktemp("small")
    rows = [row for row, _ in zip(functions(), range(80), strict=False)]
    splits = ["test", "validation", *["train"] * 6]
    pairs = ((splits[number % 8], Document(**row)) for number, row in enumerate(rows))
    write_dataset(folder / "dataset", pairs, "prompt-completion", {"source": "test"})
    base_model(folder / "model", MODEL, folder / "dataset")
    cfg = {"format": "prompt-completion", **result_keys(Data(block_size=64))}
    tokenize(folder / "dataset", folder / "model", folder / "tokens", cfg)
    return folder


@pytest.fixture
def make_job(small: Path, tmp_path: Path) -> Make:
    """A job of 8 steps in fp32 with settings of the test's own."""

    def make(work: str = "work", **settings: Any) -> Job:
        train = {
            "max_steps": 8,
            "global_batch_size": 8,
            "learning_rate": 1e-2,
            "precision": "fp32",
            "logging_steps": 1,
            "eval_steps": 4,
            "save_steps": 2,
            **settings,
        }
        folder = tmp_path / work
        folder.mkdir(exist_ok=True)
        return Job(small / "model", small / "tokens", folder, Train(**train), threads=1)

    return make


@pytest.fixture
def alone() -> Place:
    """The place of a single worker."""
    return Place(rank=0, world_size=1, device=torch.device("cpu"), committed=lambda step: None)
