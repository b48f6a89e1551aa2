"""Results of a small run of each stage, as far as they don't depend on the processor."""

import hashlib
import json
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from golden.around import folders_around
from golden.experiment import EXPERIMENT, write_data
from in_one_process import make_all
from numpy.typing import NDArray
from safetensors.torch import load_file

from moray.config import plan
from moray.config.load import load_experiment
from moray.config.schema.experiment import Experiment
from moray.provenance.lineage import software

# A smoke test measures seconds.
WITHOUT = {"smoke_test"}
# Differ between two executions of the same code, or say which machine and libraries it was.
_VOLATILE = {
    "checkpoint",
    "code",
    "commit",
    "fingerprint",
    "id",
    "inputs",
    "libraries",
    "machine",
    "note",
    "peft_version",
    "proof",
    "seconds",
    "sha256",
    "software",
    "step_seconds",
    "tflops",
    "time",
    "transformers_version",
}
_SPEED = "_per_second"
# Digests and words.
_LEFT_OUT = {"lineage.json", "preview.txt", "proof.json"}
# What the stages around the main job read.
OF_TEXT = ("texts", "answers", "talks")
_RUNS = {
    "language": OF_TEXT,
    "preference": ("pairs",),
    "kto": ("opinions",),
    "classification": ("ratings",),
    "reward": ("judged",),
    "token_classification": ("tagged",),
    "images": ("colours",),
}


def results(folder: Path, main: bool, around: bool) -> dict[str, Any]:
    """Make the results of each stage in an empty folder.

    Args:
        main: whether of the stages of the main job, of all tasks.
        around: whether of the stages around it.

    Returns:
        By row of `moray.config.versions.RESULTS`: digests of what is the same everywhere, and
        figures. And the versions of libraries, and what was compared with them as `proofs`.
    """
    write_data(folder / "data")
    runs = EXPERIMENT["runs"] if main else {run: EXPERIMENT["runs"][run] for run in OF_TEXT}
    config = {**EXPERIMENT, "runs": runs}
    make_all(folder, config)
    experiment = load_experiment(config)
    found = _of_main_job(experiment) if main else {}
    if around:
        found |= {name: _folder(str(made)) for name, made in folders_around(experiment).items()}
    return {"libraries": software(), **json.loads(json.dumps(found, sort_keys=True))}


def _of_main_job(experiment: Experiment) -> dict[str, Any]:
    found = {
        "base_model labelled text": _folder("results/models/reader"),
        "base_model images": _folder("results/models/vit"),
        "base_model text": _folder("results/models/tiny"),
        "classify": _files("ratings", "samples.jsonl", "generation.json"),
        "classify reward": _files("judged", "samples.jsonl", "generation.json"),
        "decode": _folder(_only(plan.prepared_folders(experiment, "colours"))),
        "download": {name: _folder(f"results/datasets/{name}") for name in EXPERIMENT["datasets"]},
        "export labelled text": _model("ratings"),
        "export images": _model("colours"),
        "export text": {run: _model(run) for run in ("answers", "talks")},
        "generate": {run: _files(run, "samples.jsonl") for run in ("answers", "talks")},
        "predict": _files("colours", "samples.jsonl", "generation.json"),
        "reference": _folder(_only(plan.store_folders(experiment, "pairs"))),
        "finetune distillation": _files("taught", "history.jsonl", "train.json"),
        "teacher": _folder(_only(plan.store_folders(experiment, "taught"))),
        "tokenize language": {
            run: [_folder(store) for store in plan.prepared_folders(experiment, run)]
            for run in _RUNS["language"]
        },
        "tokenize kto": _folder(_only(plan.prepared_folders(experiment, "opinions"))),
        "tokenize preference": _folder(_only(plan.prepared_folders(experiment, "pairs"))),
        "tokenize_labelled": _folder(_only(plan.prepared_folders(experiment, "ratings"))),
        "tokenize_labelled reward": _folder(_only(plan.prepared_folders(experiment, "judged"))),
    }
    for task, runs in _RUNS.items():
        trained = {run: _files(run, "history.jsonl", "train.json") for run in runs}
        found[f"finetune {task}"] = trained
        found[f"evaluate {task}"] = {run: _files(run, "eval.json") for run in runs}
    found["proofs"] = _proofs()
    return found


def _proofs() -> dict[str, list[str]]:
    """By file, what its stage compared with plain libraries."""
    files = sorted(Path("results").rglob("*.json"))
    comparisons = {file: [*_comparisons(json.loads(file.read_text()))] for file in files}
    return {
        # Without the fingerprint of a store.
        re.sub(r"-[0-9a-f]{8}(?=/)", "", str(file.relative_to("results"))): sorted({*found})
        for file, found in comparisons.items()
        if found
    }


def _comparisons(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value.keys() >= {"what", "library", "skipped"}:
        yield f"{value['what']} (skipped)" if value["skipped"] else value["what"]
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _comparisons(each)


def _only(folders: list[str]) -> str:
    (folder,) = folders
    return folder


def _files(run: str, *names: str) -> dict[str, Any]:
    return {name: content(Path("results/runs", run, name)) for name in names}


def _model(run: str) -> dict[str, Any]:
    # What the card says is a result of `card`.
    return _folder(f"results/runs/{run}/model", {"README.md"})


def _folder(folder: str, left_out: Set[str] = frozenset()) -> dict[str, Any]:
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): content(path)
        for path in files
        if path.name not in _LEFT_OUT | left_out
    }


def content(file: Path) -> Any:
    """What a file says: its values, or a digest of its bytes; of weights, their mean size."""
    if file.suffix == ".json":
        return stable(json.loads(file.read_text()))
    if file.suffix == ".jsonl":
        return [stable(json.loads(line)) for line in file.read_text().splitlines()]
    if file.suffix == ".parquet":
        return _digest(repr(pq.read_table(file).to_pylist()).encode())
    if file.suffix == ".safetensors":
        return {
            name: [str(each.dtype), list(each.shape), float(each.abs().double().mean())]
            for name, each in load_file(file).items()
            # Of a bias of keys, the gradient is nothing but rounding.
            if not name.endswith("bias")
        }
    if file.suffix == ".rows":
        return _rows(file)
    return _digest(file.read_bytes())


def _rows(file: Path) -> dict[str, Any]:
    """By field of the rows, a digest, or figures."""
    record = json.loads(file.with_name("manifest.json").read_text())["record"]
    rows = np.fromfile(file, [(name, kind, tuple(shape)) for name, kind, shape in record])
    return {name: _field(rows[name], kind) for name, kind, _ in record}


def _field(values: NDArray[Any], kind: str) -> Any:
    if kind == "<f2":
        # The last bit of each is of the processor.
        return float(values.mean(dtype="f8"))
    return values.tolist() if kind == "<f4" else _digest(values.tobytes())


def _digest(whole: bytes) -> str:
    return hashlib.sha256(whole).hexdigest()[:16]


def stable(value: Any) -> Any:
    """A value without what differs between two executions."""
    if isinstance(value, dict):
        return {
            key: stable(entry)
            for key, entry in value.items()
            if key not in _VOLATILE and not key.endswith(_SPEED)
        }
    return [stable(entry) for entry in value] if isinstance(value, list) else value
