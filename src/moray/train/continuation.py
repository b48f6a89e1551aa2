"""Find a run's checkpoints under other fingerprints, and continue from one."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moray.config.schema import Adapter, Train
from moray.console import say
from moray.errors import UserError
from moray.provenance.manifest import damaged_files, write_json
from moray.train.checkpoints import checkpoint
from moray.train.data import mixture_of
from moray.train.early_stopping import Evaluations
from moray.train.history import HISTORY, evaluations
from moray.train.identity import Identity, differences, read_identity, write_identity
from moray.train.job import Part

_RECORD = "continued_from.json"


def prepare_work(
    run: str,
    work: Path,
    identity: Identity,
    settings: Train,
    adapter: Adapter | None,
    start: Path,
    parts: Sequence[Part],
) -> None:
    """Record a run's identity, and import the checkpoint that it continues from.

    Call it while no other process trains the run. If there is no checkpoint to import and the run
    has none of its own, the user gets a note about those under another fingerprint.

    Args:
        run: name of the run.
        work: its work folder.
        identity: what it depends on.
        settings: its `train` section.
        adapter: its `adapter` section.
        start: Hugging Face folder to start from.
        parts: its datasets.

    Raises:
        UserError: if the run can't continue from `train.resume_from_checkpoint`.
    """
    write_identity(identity, work)
    own = checkpoint.newest_step(checkpoint.folder_of(work))
    if settings.resume_from_checkpoint is None:
        if own == 0:
            _tell_of_others(run, work, identity)
        return
    given, key = Path(settings.resume_from_checkpoint), f"runs.{run}.train.resume_from_checkpoint"
    if own >= checkpoint.step_of(given):
        if continued_from(work) is None:
            say(f"run {run}: resuming from its own checkpoint at step {own}, not from {given}")
        return
    _check_position(key, given, settings, parts)
    _check_tensors(key, given, start, parts[0].store, adapter, identity.settings)
    _bring_in(key, given, work, identity, settings)


def continued_from(work: Path) -> dict[str, Any] | None:
    """The record of the checkpoint that a run continued from; None if it didn't."""
    path = work / _RECORD
    record: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return record


def _tell_of_others(run: str, work: Path, identity: Identity) -> None:
    """Point the user to the newest checkpoint under another fingerprint."""
    found = [path for path in work.parent.glob("*/checkpoints/step-????????") if path.is_dir()]
    if not found:
        return
    last = max(found, key=lambda path: path.stat().st_mtime)
    differing = ", ".join(differences(read_identity(_work_of(last)), identity))
    say(
        f"run {run}: starting at step 0, because its checkpoint at step "
        f"{checkpoint.step_of(last)} was made with different inputs: {differing}; to continue from "
        f"that checkpoint anyway, set runs.{run}.train.resume_from_checkpoint: {last}"
    )


def _check_position(key: str, given: Path, settings: Train, parts: Sequence[Part]) -> None:
    mixture = mixture_of(parts, settings)
    num_steps = settings.max_steps or mixture.num_steps(settings.num_epochs)
    if checkpoint.step_of(given) > num_steps:
        raise UserError(
            key,
            f"{given} is past the last step of this run ({num_steps})",
            "use an earlier checkpoint, or raise train.max_steps or train.num_epochs",
        )


def _check_tensors(
    key: str,
    given: Path,
    start: Path,
    store: Path,
    adapter: Adapter | None,
    sections: dict[str, Any],
) -> None:
    """Refuse a checkpoint whose tensors aren't those that the run trains."""
    # PyTorch and transformers take seconds to import.
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from moray.tasks.of_store import task_of
    from moray.train.checkpoints.metadata import MetadataReader
    from moray.train.engine.statistics import statistics_of
    from moray.train.engine.strategies.state import trained_parameters

    model = task_of(store, sections).empty(start, torch.float32)
    if adapter is not None:
        from moray.model.adapter import add_adapter

        add_adapter(model, adapter, seed=0)
    tensors = {**trained_parameters(model), **statistics_of(model)}
    wanted = {name: tuple(value.shape) for name, value in tensors.items()}
    if damaged := damaged_files(given):
        raise UserError(
            key,
            f"{given} has missing or damaged files: {', '.join(damaged)}",
            "use another checkpoint",
        )
    found = {
        name: tuple(entry.size)
        for name, entry in MetadataReader(given).read_metadata().state_dict_metadata.items()
        # Names with a slash are the optimizer's.
        if isinstance(entry, TensorStorageMetadata) and "/" not in name
    }
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                key,
                f"the tensors in {given} don't match this run: {name} is "
                f"{_shape(found.get(name))} there and {_shape(wanted.get(name))} here",
                "use a checkpoint of the same model and adapter",
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))


def _bring_in(key: str, given: Path, work: Path, identity: Identity, settings: Train) -> None:
    """Import a checkpoint and its run's history into this run's work folder."""
    step, folder, other = checkpoint.step_of(given), checkpoint.folder_of(work), _work_of(given)
    if not (other / HISTORY).exists():
        raise UserError(
            key,
            f"{given} has no history at {other / HISTORY}",
            "use a checkpoint in its original place",
        )
    wanted = {step}
    if settings.load_best_model_at_end:
        best = Evaluations(None, evaluations(other, until=step)).best
        wanted |= {best} if best else set()
    sources = [checkpoint.path_of(given.parent, number) for number in sorted(wanted)]
    for source in sources:
        if damaged := damaged_files(source):
            raise UserError(
                key,
                f"{source}, the best checkpoint up to {given}, has missing or damaged files: "
                f"{', '.join(damaged)}",
                "set train.load_best_model_at_end to false, or use another checkpoint",
            )
    # Checkpoints of earlier steps belong to a different loss curve than the history.
    checkpoint.remove_from(folder, 0)
    shutil.copyfile(other / HISTORY, work / HISTORY)
    before = read_identity(other)
    record = {
        "checkpoint": str(given),
        "step": step,
        "fingerprint": before.fingerprint if before else other.name,
        "differences": differences(before, identity),
    }
    write_json(work / _RECORD, record)
    # The checkpoint to resume from comes last: until it exists, all of this is repeated.
    for source in sources:
        checkpoint.adopt(folder, source)


def _work_of(given: Path) -> Path:
    """The work folder of a checkpoint."""
    return given.parent.parent
