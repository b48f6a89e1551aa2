"""A teacher of the small model, and its store."""

from pathlib import Path
from typing import Any

from jobs import execution_of
from small_model import MODEL

from moray.stages.base_model import base_model
from moray.tasks.distillation.teacher import teacher

EXECUTION = execution_of("evaluate")
CFG = {"precision": "fp32", "temperature": 2.0, "top_k": 8}


def write_teacher(folder: Path, small: Path, **keys: object) -> None:
    """Write `teacher`, a larger model with the tokenizer of the small one."""
    base_model(folder / "teacher", MODEL | {"hidden_size": 48, "seed": 1} | keys, small / "dataset")


def write_taught(
    folder: Path, small: Path, output: Path, cfg: dict[str, Any] = CFG, **execution: Any
) -> None:
    """Write a store of the small model's tokens with what `teacher` in a folder predicts."""
    teacher(
        "name",
        folder / "teacher",
        small / "model",
        small / "tokens",
        output,
        cfg,
        EXECUTION | execution,
    )
