"""Make a base model: from scratch, from a local folder, or from the hub."""

from importlib import import_module
from pathlib import Path
from typing import Any

from moray.console import say
from moray.hub import refusals_explained
from moray.model.obtain import download_snapshot
from moray.provenance.manifest import whole_or_nothing, write_manifest


def base_model(output: Path, cfg: dict[str, Any], dataset: Path | None = None) -> None:
    """Write a Hugging Face folder, its manifest last.

    A tokenizer from scratch is trained on the dataset; of images, a model tells apart its classes.
    `state` in `cfg` only makes it run again; what counts of the user's files is copied.
    """
    cfg = {key: cfg[key] for key in cfg if key != "state"}
    modality = "text" if cfg.get("classes_of") is None else "images"
    # By name: the other need not be imported.
    make = import_module(f"moray.stages.base_model_{modality}").make
    with (
        refusals_explained(f"models.{output.name}", str(cfg.get("repo_id"))),
        whole_or_nothing(output),
    ):
        source = None
        if cfg["source"] == "hub":
            has_weights = not cfg.get("random_weights")
            source = download_snapshot(cfg["repo_id"], cfg["revision"], has_weights)
        elif cfg["source"] == "path":
            source = Path(cfg["path"])
        model, facts = make(output, cfg, source, dataset)
        parameters: int = model.num_parameters()
        architecture = model.config.model_type
        write_manifest(output, model=cfg, parameters=parameters, architecture=architecture, **facts)
    classes = f", {model.config.num_labels} classes" if modality == "images" else ""
    say(f"model {output.name}: {parameters / 1e6:.1f} M parameters{classes}")
