"""Make a Hugging Face folder of the checkpoint that a run is exported from."""

import json
from pathlib import Path
from typing import Any

from moray.config.schema import Adapter
from moray.console import say
from moray.model.adapter import merged, save_adapter
from moray.model.load import load_model
from moray.provenance.manifest import MANIFEST, whole_or_nothing, write_manifest
from moray.stages.boundary import File, Folder, Json, command_line
from moray.tokens.tokenizer import load_tokenizer
from moray.train.checkpoints.trained_model import trained_model
from moray.train.history import read_history

_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [moray]
---

# {run}

`{start}`, fine-tuned on the dataset `{dataset}` for {steps} steps by moray.

| | |
|---|---|
| loss at the last of them that was logged | {loss:.4f} nats a token |
| loss on the validation split | {eval_loss} |
| arithmetic of the forward pass | {precision} |
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


def export(start: Folder, train: File, history: File, output: Folder, cfg: Json) -> None:
    """Write model, tokenizer, generation config, model card, and the manifest last.

    Of a run with adapters, these are merged into the model, and lie in `adapter/` by themselves.

    Args:
        start: Hugging Face folder that the run started from.
        train: the run's `train.json`.
        history: the run's `history.jsonl`.
        output: folder to write to.
        cfg: names of the run, its start and its dataset; the chat template that it spoke by.
    """
    record = json.loads(train.read_text())
    adapter = Adapter(**record["adapter"]) if record["adapter"] else None
    model = trained_model(start, Path(record["checkpoint"]), adapter)
    with whole_or_nothing(output):
        if adapter is not None:
            save_adapter(model, adapter, output / "adapter")
            model = merged(load_model(start), output / "adapter")
        model.save_pretrained(output)
        tokenizer = load_tokenizer(start)
        if cfg["chat_template"] is not None:
            tokenizer.chat_template = cfg["chat_template"]
        tokenizer.save_pretrained(output)
        (output / "README.md").write_text(_card(cfg, record, history))
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


def _card(cfg: dict[str, Any], record: dict[str, Any], history: Path) -> str:
    exported = record["exported_step"]
    lines = [line for line in read_history(history) if line["step"] <= exported]
    losses = [line["loss"] for line in lines if "loss" in line]
    held_out = [line["eval_loss"] for line in lines if "eval_loss" in line]
    return _CARD.format(
        **{key: cfg[key] for key in ("run", "start", "dataset")},
        steps=exported,
        loss=losses[-1],
        eval_loss=f"{held_out[-1]:.4f} nats a token" if held_out else "none: the split is empty",
        precision=record["precision"],
        fingerprint=record["fingerprint"],
        continued=_continued(record["continued_from"]),
        settings=json.dumps(record["train"], indent=2),
        software=json.dumps(record["software"], indent=2),
    )


def _continued(record: dict[str, Any] | None) -> str:
    if record is None:
        return ""
    row = "continued at step {step} from a checkpoint of fingerprint"
    differing = ", ".join(record["differences"])
    return f"| {row.format(**record)} | `{record['fingerprint']}`; different: {differing} |\n"


if __name__ == "__main__":
    command_line(export)
