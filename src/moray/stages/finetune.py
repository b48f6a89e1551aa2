"""Fine-tune a model on Ray Train."""

from pathlib import Path
from typing import Any

from moray.config.schema import Adapter, Data, Ray, Train
from moray.train.driver import run_training


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
        cfg: the datasets with their shares, the `adapter` section, and the keys that the result
            depends on of the `train` section and of those that only the run's task reads.
        execution: `ray` section, the names in `tracking`, and the other keys of the `train` and
            `data` sections.
        code: digest of the source code that the result depends on.
    """
    run_training(
        run=run,
        start=start,
        stores=dict(zip(cfg["datasets"], stores, strict=True)),
        output=output,
        settings=Train(**cfg["train"], **execution["train"]),
        adapter=Adapter(**cfg["adapter"]) if cfg["adapter"] else None,
        data_settings=Data(**execution["data"]),
        ray_settings=Ray(**execution["ray"]),
        code=code,
        shares=cfg["datasets"],
        trackers=execution["tracking"],
        task_settings={key: cfg[key] for key in cfg if key not in ("adapter", "datasets", "train")},
    )
