"""What the model cards of all tasks say about a run."""

import json
from pathlib import Path
from typing import Any

from moray.train.history import read_history


def facts_for_card(record: dict[str, Any], history: Path, unit: str) -> dict[str, Any]:
    """Values for the placeholders of a card.

    Args:
        record: the run's `train.json`.
        history: the run's `history.jsonl`.
        unit: what the loss is averaged over, singular.
    """
    exported = record["exported_step"]
    lines = [line for line in read_history(history) if line["step"] <= exported]
    losses = [line["loss"] for line in lines if "loss" in line]
    held_out = [line["eval_loss"] for line in lines if "eval_loss" in line]
    return {
        "steps": exported,
        "loss": losses[-1],
        "eval_loss": f"{held_out[-1]:.4f} nats per {unit}"
        if held_out
        else "none: the split is empty",
        "precision": record["precision"],
        "fingerprint": record["fingerprint"],
        "continued": _continued(record["continued_from"]),
        "settings": json.dumps(record["train"], indent=2),
        "software": json.dumps(record["software"], indent=2),
    }


def _continued(record: dict[str, Any] | None) -> str:
    if record is None:
        return ""
    row = "continued at step {step} from a checkpoint of fingerprint"
    differing = ", ".join(record["differences"])
    return f"| {row.format(**record)} | `{record['fingerprint']}`; different: {differing} |\n"
