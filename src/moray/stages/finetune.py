"""Fine-tune a model on Ray Train."""

from pathlib import Path
from typing import Any

from moray.train.driver import run_training
from moray.train.spec import RunSpec


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
    run_training(RunSpec.of_params(run, start, stores, cfg, execution, code), output)
