"""Choose the best run of a sweep, and make its model available as a start for others."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

from moray.console import say
from moray.errors import UserError
from moray.model.folder import base_reference
from moray.provenance.lineage import LINEAGE, write_sealed
from moray.provenance.manifest import (
    MANIFEST,
    atomic_folder,
    list_files,
    read_manifest,
    write_listed_manifest,
)
from moray.train.history import HISTORY, evaluations


def choose(runs: list[Path], output: Path, choice: Path, cfg: dict[str, Any]) -> None:
    """Copy the model of the run with the lowest validation loss, and record the choice.

    The copy has the manifest of the original, so what starts from it can't tell them apart.

    Args:
        runs: folders of the sweep's runs, in the order of their names in `cfg`.
        choice: JSON file to write, with the losses of all runs and the SHA-256 of what they were
            read from.

    Raises:
        UserError: if a run has no validation loss, or the model to copy is damaged.
    """
    folders = dict(zip(cfg["runs"], runs, strict=True))
    losses = {name: _loss(name, folder) for name, folder in folders.items()}
    # The first by name of equal ones.
    best = min(sorted(losses), key=lambda name: _rank(losses[name]))
    model = folders[best] / "model"
    facts: dict[str, Any] = {"sweep": cfg["sweep"], "best": best, "validation_loss": losses}
    with atomic_folder(output):
        _copy(model, output)
        records = [folder / name for folder in runs for name in ("train.json", HISTORY)]
        write_sealed(choice, facts, [model / MANIFEST, *records])
        write_sealed(output / LINEAGE, {"best": best}, [output / MANIFEST, choice])
    say(f"best of {cfg['sweep']}: {best}, validation loss {losses[best]:.4f}")


def _loss(name: str, folder: Path) -> float:
    """The loss on the validation split of the model that a run exports."""
    step = json.loads((folder / "train.json").read_text())["exported_step"]
    losses = evaluations(folder, until=step)
    if not losses:
        raise UserError(
            f"runs.{name}",
            "has no validation loss, because no row is in the validation split",
            "raise the validation_share of its dataset",
        )
    return losses[max(losses)]


def _rank(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss


def _copy(model: Path, output: Path) -> None:
    """Copy the files that a model's manifest lists, and the manifest last."""
    manifest = read_manifest(model)
    files = manifest.pop("files")
    for name in files:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model / name, output / name)
    copies = list_files(output, [output / name for name in files])
    for name in files:
        if copies[name] != files[name]:
            raise UserError(
                str(model / name),
                f"doesn't match its SHA-256 in {model / MANIFEST}",
                f"delete {model / MANIFEST} and rerun to export the model again",
            )
    if "base" in manifest:
        # Relative to the folder of the adapter.
        base = Path(os.path.normpath(model / manifest["base"]["path"]))
        manifest["base"] = base_reference(output, base)
    write_listed_manifest(output, files, **manifest)
