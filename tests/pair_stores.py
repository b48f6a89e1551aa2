"""The stores of a preference run, made by its stages."""

from pathlib import Path
from typing import Any

from jobs import execution_of

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.stages.reference import reference
from moray.stages.tokenize import tokenize

EXECUTION = execution_of("evaluate")
HELD = {"precision": "fp32", "base_dtype": "fp32", "quantize_base": None}


def write_stores(folder: Path, model: Path, data: Data) -> None:
    """Make the stores `pairs` and `reference` of the `dataset` in a folder."""
    cfg = {"format": "preference", **result_keys(data)}
    tokenize(folder / "dataset", model, folder / "pairs", cfg)
    make_reference(folder, model, folder / "reference")


def make_reference(folder: Path, model: Path, output: Path, **execution: Any) -> None:
    """Make a reference of the store `pairs` in a folder."""
    reference("name", model, folder / "pairs", output, HELD, EXECUTION | execution)
