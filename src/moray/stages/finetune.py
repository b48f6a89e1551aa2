"""Fine-tune a model on Ray Train."""

from pathlib import Path
from typing import Any

from moray.config import extras
from moray.train.driver import run_training
from moray.train.spec import RowsThatFit, RunSpec


def finetune(
    run: str,
    start: Path,
    stores: list[Path],
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
) -> None:
    """Write `history.jsonl` and `train.json`; checkpoints go to `execution.ray.storage_path`."""
    spec = RunSpec.of_params(run, start, stores, cfg, execution, code)
    run_training(spec, output, rows_that_fit=rows_that_fit())


def rows_that_fit() -> RowsThatFit | None:
    """What the plan of a run's memory says of `micro_batch_size: auto`, if it is there."""
    folder = extras.COMMANDS["plan"]
    if not extras.is_there(folder):
        return None
    found: RowsThatFit = extras.part(folder, "fit").rows_that_fit
    return found
