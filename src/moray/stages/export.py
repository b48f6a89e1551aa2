"""Export a run's checkpoint as a Hugging Face folder."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from moray.config.schema.base import Proofs
from moray.config.tasks import MODALITIES, TASK_SECTIONS, Modality, module_of
from moray.console import say
from moray.model.folder import is_model, stored_dtype
from moray.proofs.budget import TOO_LARGE, num_affordable
from moray.proofs.comparison import (
    Comparison,
    collect,
    conclude,
    read_proof,
    transformers_version,
    write_proof,
)
from moray.proofs.figures import ROUNDED, autocast_as_in_run, tolerance
from moray.provenance.lineage import LINEAGE, write_sealed
from moray.provenance.manifest import DATASET, MANIFEST, atomic_folder, write_manifest
from moray.rows.store import StoredRows
from moray.train.history import read_history
from moray.train.task import task_of

_CARD = """\
---
library_name: {library}
pipeline_tag: {pipeline}
tags: [{tags}]
---

# {run}

`{start}`, fine-tuned on {datasets} for {steps} steps by moray.{more}

| | |
|---|---|
| last logged training loss | {loss:.4f} {unit} |
| loss on the validation split | {eval_loss} |
| precision of the forward pass | {precision} |
| fingerprint of settings, data, start and code | `{fingerprint}` |
{adapter}{continued}
## Settings

```json
{settings}
```

## Software

```json
{software}
```
"""


@dataclass(frozen=True)
class ExportedModel:
    """A model that was written to a folder, for its card and its manifest.

    `compare` compares it with what plain transformers reads back. On the card, `more` follows the
    first sentence; the library is the one that loads the model.
    """

    unit: str
    pipeline: str
    facts: dict[str, Any]
    compare: Callable[[], Iterable[Comparison]] = tuple
    library: str = "transformers"
    more: str = ""


def export(
    start: Path,
    train: Path,
    history: Path,
    sources: list[Path],
    output: Path,
    cfg: dict[str, Any],
    modality: Modality,
    proofs: Proofs = "refuse",
) -> None:
    """Write model, tokenizer or image processor, model card, the manifest, and the lineage last.

    An adapter is merged into the model, and also written to `adapter/`. Without `merge_adapter`,
    only the adapter is written, and the manifest names its base.

    Args:
        sources: manifests of the start and of the run's rows, and descriptions of its datasets.
        cfg: names of the run, its start and its datasets; the `export` section; of text, the run's
            chat template, and `data.bos` if it isn't `auto`.
        proofs: what follows if it differs from what transformers loads.

    Raises:
        UserError: if it does, and `proofs` is `refuse`.
    """
    write = module_of(MODALITIES[modality].task, "export").write
    began, record = time.monotonic(), json.loads(train.read_text())
    with atomic_folder(output):
        model: ExportedModel = write(start, record, output, cfg)
        _write_card(output, cfg, record, history, model)
        lineage = json.loads((start / MANIFEST).read_text())
        lineage.pop("files")
        write_manifest(
            output,
            run=cfg["run"],
            fingerprint=record["fingerprint"],
            continued_from=record["continued_from"],
            start=lineage,
            **model.facts,
        )
        _write_lineage(output, train, history, sources)
        proof = []
        if proofs != "off":
            # Now the manifest names the base of an adapter.
            seconds = time.monotonic() - began
            comparisons = [
                *collect("tokenizer", model.compare),
                *collect(
                    "loss of the exported model",
                    lambda: [_compare_loss(output, start, record, history, seconds)],
                ),
            ]
            proof = conclude(comparisons, proofs, f"runs.{cfg['run']}")
        # The models that this one starts from and learns from have proofs of their own.
        folders = (source.parent for source in sources)
        earlier = [read_proof(folder) for folder in folders if not is_model(folder)]
        whole = [*chain.from_iterable(earlier), *record.get("proof", ()), *proof]
        write_proof(output, whole, [output / MANIFEST, train])
    say(f"model of {cfg['run']}: {output}")


def _compare_loss(
    folder: Path, start: Path, record: dict[str, Any], history: Path, seconds: float
) -> Comparison:
    """Compare the loss of a few held-out rows at the exported step with the exported model's."""
    what = "loss of the exported model on validation rows"
    samples = [
        line["eval_sample"]
        for line in read_history(history)
        if line["step"] == record["exported_step"] and "eval_sample" in line
    ]
    if not samples:
        return Comparison(what, skipped="there is no validation loss of the exported step")
    sample, device = samples[-1], torch.device("cpu")
    store = Path(record["inputs"]["stores"][sample["dataset"]])
    task = task_of(store, {key: record[key] for key in TASK_SECTIONS if key in record})
    rows = StoredRows(store, "validation").rows[sample["rows"]]
    if num_affordable(folder, seconds, device) < len(rows) * task.units_per_row:
        return Comparison(what, skipped=TOO_LARGE)
    precision = record["precision"]
    with autocast_as_in_run(precision, device):
        plain = task.plain(folder, start, rows, None, device, gradient=False)
    bits = record["adapter"] and record["adapter"]["quantize_base"]
    most = tolerance(precision, bits, device)
    is_rounded = precision != "fp32" or stored_dtype(folder) != torch.float32
    if precision == "fp32" and is_rounded:
        most = max(most, ROUNDED)
    return Comparison(
        what,
        sample["loss"],
        plain.loss,
        transformers_version(),
        len(rows),
        most,
        plain.rounding if is_rounded else 0.0,
        # The export is of the base as it was before it was quantized.
        advisory=bits is not None,
    )


def _write_lineage(output: Path, train: Path, history: Path, sources: list[Path]) -> None:
    """Write `lineage.json` after the manifest.

    The manifest doesn't list it: that of equal models is equal, however long their training took.
    """
    descriptions = [source for source in sources if source.name == DATASET]
    facts = {
        "training": json.loads(train.read_text()),
        "datasets": {source.parent.name: _origin(source) for source in descriptions},
    }
    write_sealed(output / LINEAGE, facts, [output / MANIFEST, train, history, *sources])


def _origin(description: Path) -> dict[str, Any]:
    facts = json.loads(description.read_text())
    # There may be a file for each row.
    return {name: value for name, value in facts.items() if name != "files"}


def _write_card(
    output: Path, cfg: dict[str, Any], record: dict[str, Any], history: Path, model: ExportedModel
) -> None:
    step, unit = record["exported_step"], model.unit
    lines = [line for line in read_history(history) if line["step"] <= step]
    losses = [line["loss"] for line in lines if "loss" in line]
    held_out = [line["eval_loss"] for line in lines if "eval_loss" in line]
    card = _CARD.format(
        library=model.library,
        pipeline=model.pipeline,
        tags="lora, moray" if record["adapter"] else "moray",
        run=cfg["run"],
        start=cfg["start"],
        datasets=_datasets(cfg["datasets"]),
        steps=step,
        more=model.more,
        loss=losses[-1],
        unit=unit,
        eval_loss=f"{held_out[-1]:.4f} {unit}" if held_out else "none: the split is empty",
        precision=record["precision"],
        fingerprint=record["fingerprint"],
        adapter=_row_of_adapter(record["adapter"], cfg),
        continued=_row_of_continuation(record["continued_from"]),
        settings=json.dumps(record["train"], indent=2),
        software=json.dumps(record["software"], indent=2),
    )
    (output / "README.md").write_text(card)


def _datasets(shares: dict[str, float]) -> str:
    if len(shares) == 1:
        return f"the dataset `{next(iter(shares))}`"
    total = sum(shares.values())
    return "the datasets " + ", ".join(
        f"`{dataset}` ({share / total:.1%})" for dataset, share in shares.items()
    )


def _row_of_adapter(adapter: dict[str, Any] | None, cfg: dict[str, Any]) -> str:
    """What was trained, if it is an adapter, and where it is."""
    if adapter is None:
        return ""
    targets = adapter["target_modules"]
    names = targets if isinstance(targets, str) else ", ".join(targets)
    kind = "DoRA" if adapter["use_dora"] else "LoRA"
    facts = [f"rank {adapter['rank']}", f"alpha {adapter['alpha']:g}", f"on `{names}`"]
    if bits := adapter["quantize_base"]:
        facts.append(f"over a base in {bits.removesuffix('bit')} bits")
    facts.append(
        "merged into these weights, and by itself in `adapter/`"
        if cfg["merge_adapter"]
        else "which this folder has by itself"
    )
    return f"| {kind} adapter | {', '.join(facts)} |\n"


def _row_of_continuation(record: dict[str, Any] | None) -> str:
    if record is None:
        return ""
    row = "continued at step {step} from a checkpoint of fingerprint"
    differing = ", ".join(record["differences"])
    return f"| {row.format(**record)} | `{record['fingerprint']}`; different: {differing} |\n"
