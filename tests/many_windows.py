"""A dataset of so many windows that a step has rows of several groups."""

from pathlib import Path

import pytest

from moray.corpus.dataset import Document, write_dataset
from moray.corpus.sources.text_python_stdlib import functions


def write_many_windows(folder: Path) -> None:
    """Write 120 functions, most of them to train, in row groups of a few each."""
    rows = [row for row, _ in zip(functions(), range(120), strict=False)]
    splits = ["test", "validation", *["train"] * 8]
    pairs = ((splits[number % 10], Document(**row)) for number, row in enumerate(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moray.corpus.dataset._GROUP_BYTES", 2000)
        write_dataset(folder, pairs, "prompt-completion", {"source": "test"})
