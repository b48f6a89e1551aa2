"""Runs of two steps on conversations, and their exports."""

import json
from pathlib import Path
from typing import Any

import torch
from conversations import CHATML

from moray.config.schema.base import result_keys
from moray.config.schema.train import Adapter, Train
from moray.provenance.manifest import MANIFEST
from moray.stages.export import export
from moray.storage.interface import folder_of, path_of
from moray.train.loop import train
from moray.train.spec import Part, RunSpec
from moray.workers.entry import Worker

CFG: dict[str, Any] = {
    "run": "tuned",
    "start": "models/chat",
    "datasets": {"talks": 1.0},
    "chat_template": CHATML,
}


CFG |= {"dtype": "auto", "merge_adapter": True}


def train_run(
    folder: Path, name: str, adapter: Adapter | None, start: str = "start", **keys: Any
) -> None:
    """Train two steps, and record what the driver would."""
    (folder / name).mkdir()
    keys = {"precision": "fp32", **keys}
    settings = Train(max_steps=2, global_batch_size=2, learning_rate=1e-2, **keys)
    job = RunSpec(
        name,
        folder / start,
        (Part("data", folder / "tokens"),),
        settings,
        adapter=adapter,
        work=folder / name,
        cache=folder / "compiled",
    )
    facts = train(job, Worker(0, 1, torch.device("cpu")))
    last = path_of(folder_of(job.work), facts["exported_step"])
    record = {
        "checkpoint": str(last),
        "fingerprint": "0123",
        "continued_from": None,
        "adapter": adapter and result_keys(adapter),
        "train": {},
        "inputs": {"stores": {"data": str(folder / "tokens")}},
        "software": {},
        **facts,
    }
    (folder / name / "train.json").write_text(json.dumps(record))


def run(
    trained: Path, output: Path, name: str = "run", start: str = "start", **changes: Any
) -> Path:
    files = trained / name / "train.json", trained / name / "history.jsonl"
    export(trained / start, *files, [trained / start / MANIFEST], output, CFG | changes, "text")
    return output
