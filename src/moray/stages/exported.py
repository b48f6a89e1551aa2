"""What the exports of all tasks have in common: the model card, the lineage and the manifest."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moray.provenance.lineage import LINEAGE, write_sealed
from moray.provenance.manifest import DATASET, MANIFEST, write_manifest
from moray.train.history import read_history

_CARD = """\
---
library_name: {library}
pipeline_tag: {pipeline}
tags: [moray]
---

# {run}

`{start}`, fine-tuned on {datasets} for {steps} steps by moray.{more}

| | |
|---|---|
| last logged training loss | {loss:.4f} {unit} |
| loss on the validation split | {eval_loss} |
| precision of the forward pass | {precision} |
| fingerprint of settings, data, start and code | `{fingerprint}` |
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


def write_card(
    output: Path,
    cfg: dict[str, Any],
    record: dict[str, Any],
    history: Path,
    *,
    unit: str,
    pipeline: str,
    library: str = "transformers",
    more: str = "",
) -> None:
    """Write the model card to a folder.

    Args:
        output: the folder.
        cfg: names of the run and its start; its datasets with their shares.
        record: the run's `train.json`.
        history: the run's `history.jsonl`.
        unit: unit of the loss.
        pipeline: name of transformers' pipeline for the model.
        library: name of the library that loads the model.
        more: what follows the first sentence.
    """
    facts = _facts(cfg, record, history, unit)
    card = _CARD.format(**facts, pipeline=pipeline, library=library, more=more)
    (output / "README.md").write_text(card)


def write_lineage(output: Path, train: Path, history: Path, sources: Sequence[Path]) -> None:
    """Write `lineage.json` to the folder of an exported model, after its manifest.

    The manifest doesn't list it: that of equal models is equal, however long their training took.

    Args:
        output: the folder.
        train: the run's `train.json`.
        history: the run's `history.jsonl`.
        sources: manifests of the start and of the run's rows, and descriptions of its datasets.
    """
    descriptions = [source for source in sources if source.name == DATASET]
    facts = {
        "training": json.loads(train.read_text()),
        "datasets": {source.parent.name: _origin(source) for source in descriptions},
    }
    write_sealed(output / LINEAGE, facts, [output / MANIFEST, train, history, *sources])


def _origin(description: Path) -> dict[str, Any]:
    facts = json.loads(description.read_text())
    # There may be as many as images.
    return {name: value for name, value in facts.items() if name != "files"}


def write_export_manifest(
    output: Path, cfg: dict[str, Any], record: dict[str, Any], start: Path, **facts: Any
) -> None:
    """Write the manifest of an exported model to its folder.

    Args:
        output: the folder.
        cfg: names the run.
        record: the run's `train.json`.
        start: model folder that the run started from.
        facts: more entries of the manifest.
    """
    lineage = json.loads((start / MANIFEST).read_text())
    lineage.pop("files")
    write_manifest(
        output,
        run=cfg["run"],
        fingerprint=record["fingerprint"],
        continued_from=record["continued_from"],
        start=lineage,
        **facts,
    )


def _facts(cfg: dict[str, Any], record: dict[str, Any], history: Path, unit: str) -> dict[str, Any]:
    exported = record["exported_step"]
    lines = [line for line in read_history(history) if line["step"] <= exported]
    losses = [line["loss"] for line in lines if "loss" in line]
    held_out = [line["eval_loss"] for line in lines if "eval_loss" in line]
    return {
        "run": cfg["run"],
        "start": cfg["start"],
        "datasets": _datasets(cfg["datasets"]),
        "steps": exported,
        "loss": losses[-1],
        "unit": unit,
        "eval_loss": f"{held_out[-1]:.4f} {unit}" if held_out else "none: the split is empty",
        "precision": record["precision"],
        "fingerprint": record["fingerprint"],
        "continued": _continued(record["continued_from"]),
        "settings": json.dumps(record["train"], indent=2),
        "software": json.dumps(record["software"], indent=2),
    }


def _datasets(shares: dict[str, float]) -> str:
    if len(shares) == 1:
        return f"the dataset `{next(iter(shares))}`"
    total = sum(shares.values())
    return "the datasets " + ", ".join(
        f"`{dataset}` ({share / total:.1%})" for dataset, share in shares.items()
    )


def _continued(record: dict[str, Any] | None) -> str:
    if record is None:
        return ""
    row = "continued at step {step} from a checkpoint of fingerprint"
    differing = ", ".join(record["differences"])
    return f"| {row.format(**record)} | `{record['fingerprint']}`; different: {differing} |\n"
