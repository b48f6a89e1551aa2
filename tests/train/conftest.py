"""A small experiment to train in this process."""

from pathlib import Path

import pytest
import torch
from jobs import Make, job_maker
from small_model import MODEL

from moray.config.schema import Data, result_keys
from moray.corpus.dataset import write_dataset
from moray.corpus.document import Document
from moray.corpus.sources.python_stdlib import functions
from moray.stages.base_model import base_model
from moray.stages.tokenize import tokenize
from moray.train.job import Place


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
    """See `job_maker`; in the test's folder."""
    return job_maker(small, tmp_path)


@pytest.fixture(scope="session")
def alone() -> Place:
    """The place of a single worker."""
    return Place(rank=0, world_size=1, device=torch.device("cpu"))
