"""What the model cards of all tasks say about a run."""

import json
from pathlib import Path
from typing import Any

from moray.train.history import read_history


def facts_for_card(
    cfg: dict[str, Any], record: dict[str, Any], history: Path, unit: str
) -> dict[str, Any]:
    """Values for the placeholders of a card.

    Args:
        cfg: names of the run and its start; its datasets with their shares.
        record: the run's `train.json`.
        history: the run's `history.jsonl`.
        unit: unit of the loss.
    """
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
