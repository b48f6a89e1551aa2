"""Results of runs that never ran, in the files that a workflow writes."""

import json
import math
from pathlib import Path
from typing import Any

from moray.config.schema.base import result_keys
from moray.config.schema.losses import Preference
from moray.config.schema.train import Train
from moray.provenance.manifest import sha256_file

STEPS = 40
DIGEST = "0123456789abcdef" * 4


def write_run(project: Path, run: str, **changes: Any) -> Path:
    """Write the results of a finished and evaluated run.

    Args:
        project: the folder that holds `results`.
        run: its name.
        changes: `train`: settings; `start`: folder; `shift`: what its scores are worse by; `steps`;
            `samples`: lines; `sections`: those that only its task reads.

    Returns:
        The run's folder.
    """
    folder = project / "results/runs" / run
    steps = changes.get("steps", STEPS)
    (folder / "model").mkdir(parents=True)
    write_history(folder, steps)
    record = {
        "run": run,
        "fingerprint": "0123456789abcdef",
        "continued_from": None,
        "steps": steps,
        "exported_step": steps,
        "resumed_from": 0,
        "precision": "bf16",
        "device": "cpu",
        "machine": {"system": "Linux", "processor": "EPYC", "cores": 2, "memory": 8.0, "gpus": 0},
        "num_workers": 2,
        "seconds": 12.5,
        "adapter": None,
        "train": result_keys(Train(max_steps=steps, **changes.get("train", {}))),
        **changes.get("sections", {}),
        "code": "0123456789abcdef",
        "inputs": {
            "start": changes.get("start", "results/models/tiny"),
            "stores": {"functions": "results/tokens/functions-tiny-0"},
        },
        "software": {"python": "3.11", "torch": "2.13.0"},
    }
    _write(folder / "train.json", record)
    _write(folder / "model/manifest.json", {"parameters": 3_100_000, "files": {}})
    _write(folder / "model/lineage.json", lineage(project, record))
    _write(folder / "eval.json", scores(changes.get("shift", 0.0)))
    _write(folder / "generation.json", {"max_new_tokens": 8, "temperature": 0.0})
    sample = {"prompt": "def f():", "reference": " return 1", "base": " x", "tuned": " return 2"}
    lines = changes.get("samples", [sample, sample])
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_history(folder: Path, steps: int, until: int | None = None) -> None:
    """Write a history, of a run that is at a step."""
    lines: list[dict[str, Any]] = [{"step": 0, "num_steps": steps, "note": "not compiled"}]
    for step in range(1, (until or steps) + 1):
        speed = {"tokens_per_second": 1000.0 * (1 + step % 2), "step_seconds": 0.1}
        rate, norm = 1e-3 * (1 - step / steps), 1 + math.sin(step)
        loss = {"loss": 5 / math.sqrt(step), "learning_rate": rate, "grad_norm": norm}
        lines.append({"step": step, "num_steps": steps, "epoch": step / steps, **loss, **speed})
        if step % 10 == 0:
            lines.append({"step": step, "num_steps": steps, "eval_loss": 5.5 / math.sqrt(step)})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_state(project: Path, run: str, until: int, fingerprint: str = "f") -> Path:
    """Write the state of a run that is at a step; returns its folder."""
    folder = project / "results/state" / run / fingerprint
    write_history(folder, STEPS, until)
    settings = {
        "adapter": None,
        "preference": result_keys(Preference()),
        "train": result_keys(Train(max_steps=STEPS)),
    }
    _write(folder / "identity.json", {"settings": settings})
    return folder


def scores(shift: float = 0.0) -> dict[str, Any]:
    """An evaluation."""
    base = {"bits_per_byte": _figure(2.0), "accuracy": _figure(0.2)}
    tuned = {"bits_per_byte": _figure(1.5 + shift), "accuracy": _figure(0.4 - shift / 10)}
    difference = {
        name: _figure(tuned[name]["value"] - figure["value"]) for name, figure in base.items()
    }
    return {
        "documents": 100,
        "tokens": 9000,
        "confidence": 0.95,
        "base": base,
        "tuned": tuned,
        "difference": difference,
    }


def seal(project: Path, run: str) -> None:
    """Record what a run's model, scores and samples are of, as the stages do."""
    folder = Path("results/runs", run)
    manifest = folder / "model/manifest.json"
    for name, file in (
        ("model/lineage.json", folder / "train.json"),
        ("eval.json", manifest),
        ("benchmarks.json", manifest),
        ("generation.json", manifest),
    ):
        path = project / folder / name
        if path.is_file():
            content = json.loads(path.read_text())
            content["inputs"] = {
                **content.get("inputs", {}),
                str(file): sha256_file(project / file),
            }
            _write(path, content)


def lineage(project: Path, record: dict[str, Any]) -> dict[str, Any]:
    """What `export` writes beside the model."""
    files = ("results/models/tiny/manifest.json", "results/tokens/functions-tiny-0/manifest.json")
    inputs = (*files, "results/datasets/functions/dataset.json")
    description = {"source": "files", "format": "text", "duplicates": {"test": 3}, "splits": {}}
    return {
        "training": record,
        "datasets": {"functions": description},
        "inputs": {
            name: sha256_file(project / name) if (project / name).is_file() else DIGEST
            for name in inputs
        },
    }


def _figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.02, "high": value + 0.02}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
