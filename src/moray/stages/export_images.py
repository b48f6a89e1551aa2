"""Export a run's checkpoint of a model that classifies images as a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

import torch

from moray.console import say
from moray.model.classifier import load_classifier, names_of
from moray.model.folder import stored_dtype
from moray.model.image_processor import load_processor
from moray.provenance.manifest import whole_or_nothing
from moray.stages.exported import write_card, write_export_manifest, write_lineage
from moray.train.checkpoints.trained_model import trained_model

_CLASSES = """ It tells {count}
classes apart: {classes}.

```python
from transformers import pipeline

pipeline("image-classification", "path/of/this/folder")("image.png")
```"""

_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SHOWN = 20


def export_images(
    start: Path, train: Path, history: Path, sources: list[Path], output: Path, cfg: dict[str, Any]
) -> None:
    """Write model, image processor, model card, and the manifest last.

    Args:
        start: model folder that the run started from.
        train: the run's `train.json`.
        history: the run's `history.jsonl`.
        sources: manifests of the start and of the run's rows, and descriptions of its datasets.
        output: folder to write to.
        cfg: names of the run, its start and its datasets; the `export` section.
    """
    record = json.loads(train.read_text())
    model = trained_model(start, Path(record["checkpoint"]), None, load_classifier)
    dtype = stored_dtype(start) if cfg["dtype"] == "auto" else _DTYPE[cfg["dtype"]]
    with whole_or_nothing(output):
        model.to(dtype).save_pretrained(output)
        load_processor(start).save_pretrained(output)
        names = names_of(model.config)
        more = _CLASSES.format(
            count=len(names),
            classes=", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else ""),
        )
        write_card(
            output,
            cfg,
            record,
            history,
            unit="nats per image",
            pipeline="image-classification",
            more=more,
        )
        write_export_manifest(output, cfg, record, start, parameters=model.num_parameters())
        write_lineage(output, train, history, sources)
    say(f"model of {cfg['run']}: {output}")
