"""Continue from a checkpoint that was made under other settings, or by another run."""

import json
import shutil
from pathlib import Path
from typing import Any

from moray.config.schema.train import Train
from moray.console import say
from moray.errors import LockedError, UserError
from moray.provenance.manifest import as_json
from moray.storage.interface import Storage, name_of, step_of
from moray.storage.open import storage_with
from moray.train.checkpoint.keep import newest_step, remove_from
from moray.train.history import HISTORY, evaluations
from moray.train.identity import Identity, differences, read_identity, write_identity
from moray.train.optimizer import is_state
from moray.train.schedule import Evaluations
from moray.train.spec import RunSpec

_RECORD = "continued_from.json"
_KEY = "train.resume_from_checkpoint"
# State that only checkpoints of these optimizers have; both of AdamW have the same.
_STATE = {"muon": "momentum_buffer", "adafactor": "row_var"}
# Keys of `train` and their values that round what a checkpoint has in fp32.
_ROUNDED = {
    "optimizer": ("adamw_8bit", "optimizer state is", "it to 8 bits"),
    "weights": ("bf16", "weights are", "them to bf16"),
}


def prepare_work(spec: RunSpec, storage: Storage, identity: Identity, alone: bool) -> Identity:
    """Record a run's identity, and import the checkpoint that it continues from.

    Call it while no other process trains the run. If there is no checkpoint to import and the run
    has none of its own, it continues where another run with the same fingerprint is. Without one,
    the user gets a note about those under another fingerprint, unless it is one of many trials; if
    only the fingerprint differs, as another version of moray makes it, the run continues there.

    Returns:
        The identity, with the libraries of earlier starts.

    Raises:
        UserError: if the run can't continue from `train.resume_from_checkpoint`.
    """
    own, checkpoint = newest_step(storage), spec.settings.resume_from_checkpoint
    identity = identity.after(read_identity(storage.records), own)
    write_identity(identity, storage.records)
    if checkpoint is None:
        if own or not alone:
            return identity
        equal = _from_equal_run(spec, storage, identity)
        return equal or _from_elsewhere(spec, storage, identity)
    key = f"runs.{spec.name}.train.resume_from_checkpoint"
    # The record comes last: until it is there, all of this is repeated.
    if continued_from(storage) is None or own < step_of(Path(checkpoint)):
        _check_position(key, checkpoint, spec)
        _check_tensors(key, checkpoint, spec)
        _bring_in(key, checkpoint, storage, spec.settings)
        before = read_identity(storage_with(checkpoint).records)
        for key, (value, what, kind) in _ROUNDED.items():
            # Defaults aren't recorded.
            was = before.settings["train"].get(key) if before else value
            if getattr(spec.settings, key) == value != was:
                say(
                    f"run {spec.name}: continuing from {checkpoint}, whose {what} in fp32; "
                    f"train.{key}: {value} rounds {kind}"
                )
        differing = differences(before, identity)
        record = {
            "checkpoint": checkpoint,
            "step": step_of(Path(checkpoint)),
            "fingerprint": before.fingerprint if before else Path(checkpoint).parent.parent.name,
            "differences": [line for line in differing if not line.startswith(_KEY)],
        }
        storage.records.write(_RECORD, as_json(record))
    return identity


def continued_from(storage: Storage) -> dict[str, Any] | None:
    """The record of the checkpoint that a run continued from; None if it didn't."""
    content = storage.records.read(_RECORD)
    record: dict[str, Any] | None = None if content is None else json.loads(content)
    return record


def _from_equal_run(spec: RunSpec, storage: Storage, identity: Identity) -> Identity | None:
    """Continue where another run with the same settings, data and start is, if there is one."""
    last = storage.newest_of_equal_run()
    if last is None:
        return None
    other = storage_with(last)
    if other.damaged_files(step_of(Path(last))):
        return None
    run, name = f"run {spec.name}", Path(last).parents[2].name
    try:
        with other.sole_driver():
            say(f"{run}: continuing from {last}: {name} has the same settings, data and start")
            return _continue_from(last, spec, storage, identity)
    except LockedError:
        say(f"{run}: {name}, which has the same settings, data and start, is being trained too")
        return None


def _from_elsewhere(spec: RunSpec, storage: Storage, identity: Identity) -> Identity:
    """Continue from the newest checkpoint under another fingerprint, or point the user to it."""
    run, last = spec.name, storage.newest_elsewhere()
    if last is None:
        return identity
    before, step = read_identity(storage_with(last).records), step_of(Path(last))
    if differing := differences(before, identity):
        say(
            f"run {run}: starting at step 0, because its checkpoint at step {step} was made with "
            f"different inputs: {', '.join(differing)}; to continue from that checkpoint anyway, "
            f"set runs.{run}.train.resume_from_checkpoint: {last}"
        )
        return identity
    say(f"run {run}: continuing from {last}, which was made with the same inputs")
    return _continue_from(last, spec, storage, identity)


def _continue_from(
    checkpoint: str, spec: RunSpec, storage: Storage, identity: Identity
) -> Identity:
    """Import a checkpoint that was made with the same inputs; returns the identity from then on."""
    before = read_identity(storage_with(checkpoint).records)
    identity = identity.after(before, step_of(Path(checkpoint)))
    write_identity(identity, storage.records)
    _bring_in(f"runs.{spec.name}", checkpoint, storage, spec.settings)
    return identity


def _check_position(key: str, checkpoint: str, spec: RunSpec) -> None:
    # PyTorch and transformers take seconds to import.
    from moray.train.step import mixture_of

    mixture = mixture_of(spec.parts, spec.settings)
    num_steps = spec.settings.max_steps or mixture.num_steps(spec.settings.num_epochs)
    if step_of(Path(checkpoint)) > num_steps:
        raise UserError(
            key,
            f"{checkpoint} is past the last step of this run ({num_steps})",
            "use an earlier checkpoint, or raise train.max_steps or train.num_epochs",
        )


def _check_tensors(key: str, checkpoint: str, spec: RunSpec) -> None:
    """Refuse a checkpoint whose tensors aren't those that the run trains."""
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from moray.train.checkpoint.load import MetadataReader, with_adapters
    from moray.train.task import task_of

    task = task_of(spec.parts[0].store, spec.task_settings)
    tensors = with_adapters(task.empty(spec.start, torch.float32), spec.adapter)
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    source, step = storage_with(checkpoint), step_of(Path(checkpoint))
    if damaged := source.damaged_files(step):
        raise UserError(
            key,
            f"{checkpoint} has missing or damaged files: {', '.join(damaged)}",
            "use another checkpoint",
        )
    saved = MetadataReader(source.fetch(step)).read_metadata().state_dict_metadata
    saved_shapes = {
        name: tuple(entry.size)
        for name, entry in saved.items()
        if isinstance(entry, TensorStorageMetadata) and not is_state(name)
    }
    for name in sorted(shapes.keys() | saved_shapes.keys()):
        if shapes.get(name) != saved_shapes.get(name):
            raise UserError(
                key,
                f"the tensors in {checkpoint} don't match this run: {name} is "
                f"{_shape(saved_shapes.get(name))} there and {_shape(shapes.get(name))} here",
                "use a checkpoint of the same model and adapter",
            )
    kinds = {name.rpartition("/")[2] for name in saved if is_state(name)}
    there = next((name for name, kind in _STATE.items() if kind in kinds), "adamw")
    here = spec.settings.optimizer if spec.settings.optimizer in _STATE else "adamw"
    if there != here:
        raise UserError(
            key,
            f"{checkpoint} has the state of {there}, and train.optimizer is {here}",
            f"use a checkpoint of {here}, or set train.optimizer to {there}",
        )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))


def _bring_in(key: str, checkpoint: str, storage: Storage, settings: Train) -> None:
    """Import a checkpoint and its run's history into this run's storage."""
    step, other = step_of(Path(checkpoint)), storage_with(checkpoint)
    history = other.history_of(step)
    if not (history / HISTORY).exists():
        raise UserError(
            key,
            f"{checkpoint} has no history at {history / HISTORY}",
            "the checkpoint was moved; give its original path",
        )
    folder, steps = checkpoint.rpartition("/")[0], {step}
    if settings.load_best_model_at_end:
        best = Evaluations(None, evaluations(history, until=step)).best
        steps |= {best} if best else set()
    for number in sorted(steps):
        if damaged := other.damaged_files(number):
            raise UserError(
                key,
                f"{folder}/{name_of(number)}, the best checkpoint up to {checkpoint}, has "
                f"missing or damaged files: {', '.join(damaged)}",
                "set train.load_best_model_at_end to false, or use another checkpoint",
            )
    with storage.sole_writer():
        # Checkpoints of earlier steps belong to a different loss curve than the history.
        remove_from(storage, 0)
        shutil.copyfile(history / HISTORY, storage.work / HISTORY)
        # The checkpoint to resume from comes last.
        for number in sorted(steps):
            storage.adopt(number, other.fetch(number))
