"""The export of a model that classifies images."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from moray.model.classifiers import names_of
from moray.model.folder import DTYPES, stored_dtype
from moray.stages.export import ExportedModel
from moray.tasks.images.classifier import load_classifier
from moray.tasks.images.image_processor import load_processor
from moray.train.checkpoint.load import trained_model

_CLASSES = """ It tells {count}
classes apart: {classes}.

```python
from transformers import pipeline

pipeline("image-classification", "path/of/this/folder")("image.png")
```"""

_SHOWN = 20


def write(start: Path, record: dict[str, Any], output: Path, cfg: dict[str, Any]) -> ExportedModel:
    """Write model and image processor."""
    dtype = stored_dtype(start) if cfg["dtype"] == "auto" else DTYPES[cfg["dtype"]]

    def load(folder: Path) -> PreTrainedModel:
        # Buffers too.
        return load_classifier(folder, dtype).to(dtype)

    model = trained_model(start, Path(record["checkpoint"]), None, load)
    model.save_pretrained(output)
    load_processor(start).save_pretrained(output)
    names = names_of(model.config)
    example = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return ExportedModel(
        unit="nats per image",
        pipeline="image-classification",
        facts={"parameters": model.num_parameters()},
        more=_CLASSES.format(count=len(names), classes=example),
    )
