"""Export a run's checkpoint of a model that classifies images as a Hugging Face folder."""

import json
from pathlib import Path

import torch

from moray.console import say
from moray.model.classifier import load_classifier, names_of
from moray.model.folder import stored_dtype
from moray.model.image_processor import load_processor
from moray.provenance.manifest import MANIFEST, whole_or_nothing, write_manifest
from moray.stages.boundary import File, Folder, Json, command_line
from moray.stages.card import facts_for_card
from moray.train.checkpoints.trained_model import trained_model

_CARD = """\
---
library_name: transformers
pipeline_tag: image-classification
tags: [moray]
---

# {run}

`{start}`, fine-tuned on {datasets} for {steps} steps by moray. It tells {count}
classes apart: {classes}.

```python
from transformers import pipeline

pipeline("image-classification", "path/of/this/folder")("image.png")
```

| | |
|---|---|
| last logged training loss | {loss:.4f} nats per image |
| loss on the validation split | {eval_loss} |
| precision of the forward pass | {precision} |
| fingerprint of settings, data, start, code and libraries | `{fingerprint}` |
{continued}
## Settings

```json
{settings}
```

## Software

```json
{software}
```
"""

_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SHOWN = 20


def export_images(start: Folder, train: File, history: File, output: Folder, cfg: Json) -> None:
    """Write model, image processor, model card, and the manifest last.

    Args:
        start: model folder that the run started from.
        train: the run's `train.json`.
        history: the run's `history.jsonl`.
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
        card = _CARD.format(
            **facts_for_card(cfg, record, history, "nats per image"),
            count=len(names),
            classes=", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else ""),
        )
        (output / "README.md").write_text(card)
        lineage = json.loads((start / MANIFEST).read_text())
        lineage.pop("files")
        write_manifest(
            output,
            run=cfg["run"],
            fingerprint=record["fingerprint"],
            continued_from=record["continued_from"],
            parameters=model.num_parameters(),
            start=lineage,
        )
    say(f"model of {cfg['run']}: {output}")


if __name__ == "__main__":
    command_line(export_images)
