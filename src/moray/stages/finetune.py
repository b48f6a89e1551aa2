"""Fine-tune a model on Ray Train."""

from pathlib import Path
from typing import Any

from moray.planning.fit import rows_that_fit
from moray.train.driver import run_training
from moray.train.job import RunSpec


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
    run_training(spec, output, rows_that_fit=rows_that_fit)
