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
    """Write `history.jsonl` and `train.json`; checkpoints go to `execution.ray.storage_path`.

    Args:
        run: the run's name.
        start: Hugging Face folder to start from.
        stores: stores of its rows, in the order of its datasets.
        output: the run's folder.
        cfg: see `RunSpec.of_params`.
        execution: see `RunSpec.of_params`.
        code: digest of the code that the result depends on.
    """
    spec = RunSpec.of_params(run, start, stores, cfg, execution, code)
    run_training(spec, output, rows_that_fit=rows_that_fit)
