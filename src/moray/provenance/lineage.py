"""The lineage of a result: recorded with it, and checked back to the bytes of the sources."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from moray.errors import UserError, first_line
from moray.provenance.manifest import (
    DATASET,
    MANIFEST,
    PROOF,
    damaged_files,
    read_json,
    sha256_file,
    write_json,
)

LINEAGE = "lineage.json"
_SEAL = "sha256"

# Sources whose files are the user's.
_LOCAL = {"files", "idx", "image-folder"}
_LIBRARIES = (
    "ray",
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "datasets",
    "safetensors",
    "snakemake",
)


def software() -> dict[str, str]:
    """Versions of Python and of the libraries that affect a result."""
    return {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}


def write_sealed(path: Path, value: dict[str, Any], inputs: Iterable[Path]) -> None:
    """Write a JSON file with the digests of its inputs, and one of its own content.

    Args:
        value: its content; `inputs` and `sha256` are added.
        inputs: files that the content was computed from, such as manifests.
    """
    whole = {**value, "inputs": {str(file): sha256_file(file) for file in inputs}}
    write_json(path, {**whole, _SEAL: _digest(whole)})


def changed_inputs(inputs: Mapping[str, str], results: Path) -> tuple[list[Path], list[Path]]:
    """The files among a sealed file's inputs that are others now, and those that aren't there.

    Args:
        inputs: their digests, by path.
        results: the folder that the paths call `results`.
    """
    changed, missing = [], []
    for name, digest in inputs.items():
        path = Path(name)
        inside = path.parts[:1] == ("results",)
        path = results.joinpath(*path.parts[1:]) if inside else results.parent / path
        if not path.is_file():
            missing.append(path)
        elif sha256_file(path) != digest:
            changed.append(path)
    return changed, missing


def is_sealed(value: Mapping[str, Any]) -> bool:
    """Whether the content of a sealed file is as it was written."""
    return value.get(_SEAL) == _digest({key: value[key] for key in value if key != _SEAL})


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass
class Verification:
    """The outcome of the checks so far.

    Attributes:
        checked: folders and files whose content was compared with its digests.
        broken: a line for each link that doesn't hold.
        missing: source files that are no longer there, so that nothing can be said of them.
    """

    checked: list[Path] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    missing: list[Path] = field(default_factory=list)


def verify(paths: Iterable[Path]) -> Verification:
    """Check results and all that they were made from.

    Args:
        paths: folders with a `manifest.json` or a `dataset.json`, and files `eval.json`,
            `benchmarks.json` and `choice.json`. Paths in them are relative to the current
            directory.

    Raises:
        UserError: if one of the paths is none of these.
    """
    verification = Verification()
    for path in paths:
        _verify(_record_of(path), verification)
    return verification


def results_below(folder: Path) -> list[Path]:
    """All results in a folder that `verify` can check; checkpoints aren't among them."""
    state = folder / "state"
    records = (file for name in _CHECKS for file in folder.rglob(name))
    return sorted(file for file in records if state not in file.parents)


def _record_of(path: Path) -> Path:
    for record in (path, path / MANIFEST, path / DATASET):
        if record.is_file() and record.name in _CHECKS:
            return record
    raise UserError(
        str(path),
        "not a result",
        "give a folder with a manifest.json or dataset.json, such as results/runs/tuned/model, or "
        "an eval.json",
    )


def _verify(record: Path, verification: Verification) -> None:
    if record in verification.checked:
        return
    verification.checked.append(record)
    try:
        _CHECKS[record.name](record, verification)
    except UserError as error:
        verification.broken.append(str(error))
    # The record is JSON of another form.
    except (AttributeError, KeyError, TypeError):
        verification.broken.append(f"{record}: damaged: isn't of the form that moray writes")
    except OSError as error:
        verification.broken.append(f"{record}: can't be checked ({first_line(error)})")


def _check_folder(manifest: Path, verification: Verification) -> None:
    folder = manifest.parent
    damaged = damaged_files(folder)
    verification.broken += [
        f"{folder / name}: {_unlike(folder / name, manifest)}" for name in damaged
    ]
    for name in (LINEAGE, PROOF):
        if (folder / name).is_file():
            _check_sealed(folder / name, verification)


def _check_dataset(description: Path, verification: Verification) -> None:
    facts = read_json(description)
    for split, entry in facts["splits"].items():
        file = description.with_name(f"{split}.parquet")
        if not file.is_file() or sha256_file(file) != entry["sha256"]:
            verification.broken.append(f"{file}: {_unlike(file, description)}")
    sources = facts.get("files", {}) if facts["source"] in _LOCAL else {}
    for name, digest in sources.items():
        if not Path(name).is_file():
            verification.missing.append(Path(name))
        elif sha256_file(Path(name)) != digest:
            verification.broken.append(f"{name}: changed since {description} was made from it")


def _check_sealed(file: Path, verification: Verification) -> None:
    """Check a file by its own digest, then its inputs, and what they were made from."""
    value = read_json(file)
    if not is_sealed(value):
        verification.broken.append(f"{file}: doesn't match its own SHA-256")
        return
    for name, digest in value["inputs"].items():
        source = Path(name)
        if not source.is_file():
            verification.broken.append(f"{source}: not found, and {file} was made from it")
        elif sha256_file(source) != digest:
            verification.broken.append(f"{source}: changed since {file} was made from it")
        elif source.name in _CHECKS:
            _verify(source, verification)


def _unlike(file: Path, record: Path) -> str:
    if not file.is_file():
        return f"not found, but listed in {record}"
    return f"doesn't match its SHA-256 in {record}"


_CHECKS = {
    MANIFEST: _check_folder,
    DATASET: _check_dataset,
    "eval.json": _check_sealed,
    "benchmarks.json": _check_sealed,
    "choice.json": _check_sealed,
}
