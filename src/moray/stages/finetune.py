"""Fine-tune a model on Ray Train."""

from moray.config.schema import Adapter, Data, Ray, Train
from moray.stages.boundary import Folder, Json, command_line
from moray.train.driver import run_training


def finetune(
    run: str,
    start: Folder,
    store: Folder,
    output: Folder,
    cfg: Json,
    execution: Json,
    code: str = "",
) -> None:
    """Write `history.jsonl` and `train.json`; checkpoints go to `execution.ray.storage_path`.

    Args:
        run: the run's name.
        start: Hugging Face folder to start from.
        store: store of its rows.
        output: the run's folder.
        cfg: the `adapter` section, and the keys of the `train` section that the result depends on;
            other sections that batches depend on.
        execution: `ray` section, and the other keys of the `train` and `data` sections.
        code: digest of the source code that the result depends on.
    """
    run_training(
        run=run,
        start=start,
        store=store,
        output=output,
        settings=Train(**cfg["train"], **execution["train"]),
        adapter=Adapter(**cfg["adapter"]) if cfg["adapter"] else None,
        data_settings=Data(**execution["data"]),
        ray_settings=Ray(**execution["ray"]),
        code=code,
        task_settings={key: cfg[key] for key in cfg if key not in ("adapter", "train")},
    )


if __name__ == "__main__":
    command_line(finetune)
