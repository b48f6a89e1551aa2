"""Records in results of what they were made with, for when those of Snakemake are gone."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moray.config import plan, user_files
from moray.config.schema.experiment import Experiment
from moray.errors import UserError
from moray.provenance.contents import WHOLE_BYTES, contents_of
from moray.provenance.manifest import DATASET, MANIFEST

Facts = dict[str, Any]


def other_rows(experiment: Experiment, dataset: str) -> UserError | None:
    """The error for a dataset that was made from other files; None if it wasn't."""
    record = Path("results/datasets", dataset, DATASET)
    files = [
        file for split in user_files.dataset_files(experiment, dataset).values() for file in split
    ]
    digests = _read(record).get("files", {}) if files else {}
    if not digests:
        return None
    # These have another kind of digest.
    large = {file for file in files if os.path.exists(file) and os.path.getsize(file) > WHOLE_BYTES}
    before = {file: digests[file][:16] for file in digests if file not in large}
    now = contents_of(file for file in files if file not in large)
    return _other(record, {"files": before}, {"files": now})


def other_model(experiment: Experiment, model: str) -> UserError | None:
    """The error for a base model that was made with other settings; None if it wasn't."""
    record = Path("results/models", model, MANIFEST)
    now = {"model": plan.model_config(experiment, model)}
    return _other(record, _read(record), now)


def existing_model_folder(experiment: Experiment, model: str) -> Path | None:
    """The folder that the workflow made for a base model, if it was made with these settings."""
    folder = Path("results/models", model)
    # The manifest has them in this form.
    settings = json.loads(json.dumps(plan.model_config(experiment, model)))
    return folder if _read(folder / MANIFEST).get("model") == settings else None


def other_training(experiment: Experiment, run: str, code: str) -> UserError | None:
    """The error for a run that was trained with other settings; None if it wasn't."""
    settings = plan.train_config(experiment, run)
    datasets = settings.pop("datasets")
    stores = dict(zip(datasets, plan.store_folders(experiment, run), strict=True))
    inputs = {"start": plan.start_folder(experiment, run), "stores": stores}
    record = Path("results/runs", run, "train.json")
    return _other(record, _read(record), {**settings, "code": code, "inputs": inputs})


def _read(record: Path) -> Facts:
    """The record of a result; empty if it is damaged, which the stages that read it report."""
    try:
        facts = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _other(record: Path, facts: Facts, now: Facts) -> UserError | None:
    if not facts:
        return None
    before = _flat({key: facts.get(key) for key in now})
    after = _flat(json.loads(json.dumps(now)))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    if not keys:
        return None
    changes = (f"{key} ({before.get(key)} → {after.get(key)})" for key in keys)
    return UserError(
        str(record),
        f"was made of something else: {', '.join(changes)}, which Snakemake can't tell any more, "
        "because its records (.snakemake) are gone",
        f"add --forcerun {record} to make it again, or take the changes back",
    )


def _flat(facts: Mapping[str, Any], before: str = "") -> Facts:
    """Nested facts as one mapping, whose keys are dotted paths."""
    whole: Facts = {}
    for key, value in facts.items():
        path = f"{before}{key}"
        whole |= _flat(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return whole
