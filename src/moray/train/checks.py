"""Checks for everything that would make a run fail later, before anything slow starts."""

import difflib
import os
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil

from moray import machine
from moray.config.layout import (
    check_gpus,
    lay_out_here,
    new_tokens_error,
    workers_are_here,
)
from moray.config.schema.sections import Ray
from moray.config.schema.strategies import STRATEGIES
from moray.config.schema.train import Adapter, Train
from moray.errors import UserError
from moray.model.shapes import (
    NEW_TOKENS,
    Shapes,
    has_new_tokens,
    layers_of,
    num_parameters,
)
from moray.provenance.manifest import MANIFEST
from moray.provenance.space import bytes_below, check_space
from moray.storage.interface import step_of
from moray.storage.objects import check_objects
from moray.storage.open import is_remote, needed_libraries, storage_with
from moray.storage.transfer import scratch
from moray.train.memory import FLOAT, checkpoint_bytes, footprint_of
from moray.workers.launch import check_cores

# Behind the folder of temporary files, around a process id; and what Linux allows.
_RAY_SOCKET = "/ray/session_2026-01-01_00-00-00_000000_{}/sockets/plasma_store"
_LONGEST_SOCKET = 107
# Memory limit of a container: bytes, or "max". Doesn't exist elsewhere.
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def missing_requirements(
    run: str,
    settings: Train,
    adapter: Adapter | None,
    ray: Ray,
    shapes: Shapes | None,
    results: Path,
    work: Path | None = None,
) -> list[UserError]:
    """Why a run can't be trained here; empty if it can.

    Args:
        shapes: shapes of the weights that it starts from; None if they aren't known yet.
        results: folder that its model will be written below.
        work: folder of its checkpoints; None if it isn't known yet.
    """
    faults = [
        *_processors(run, ray, settings.global_batch_size),
        *_libraries(run, settings, adapter, ray),
        *_checkpoint(run, settings),
        *_attention(run, settings, ray),
        *_storage(run, ray.storage_path),
        *_sockets(settings.launcher, ray),
        *_writable("the working directory", results),
    ]
    if shapes is None:
        return faults
    if ray.address == "local":
        layout = lay_out_here(ray, settings.global_batch_size)
        if not layout.use_gpu:
            held = footprint_of(settings, adapter, shapes, layout.num_workers)
            faults += _memory(run, layout.num_workers, held.total)
    whole, checkpoint = num_parameters(shapes), checkpoint_bytes(settings, adapter, shapes)
    num_kept = settings.save_total_limit + 1 + settings.load_best_model_at_end
    if settings.max_steps:
        num_kept = min(num_kept, -(-settings.max_steps // settings.save_steps))
    # A resumed run already has some of them. Until the fingerprint is known, any can be its own.
    folders = [work] if work else Path(ray.storage_path, run).glob("*")
    steps = [step for folder in folders for step in folder.glob("checkpoints/step-????????")]
    missing = num_kept * checkpoint - sum(map(bytes_below, steps))
    if ray.in_object_store:
        # A checkpoint is on this machine's disk only until it is uploaded.
        faults += _disk(scratch(), checkpoint, results, FLOAT * whole)
    else:
        faults += _disk(Path(ray.storage_path), max(0, missing), results, FLOAT * whole)
    return faults


def model_faults(
    run: str,
    length: int | None,
    positions: int | None,
    adapter: Adapter | None,
    shapes: Shapes | None,
) -> Iterator[UserError]:
    """Settings of a run that the model it starts from doesn't support.

    Args:
        length: tokens of a sequence; None if rows aren't sequences of tokens.
        positions: maximum row length of the model; None if it isn't known.
        shapes: shapes of the model's weights; None if they aren't known yet.
    """
    if positions is not None and length is not None and length > positions:
        yield UserError(
            f"runs.{run}.data.block_size",
            f"makes sequences of {length} tokens, expected at most {positions}, the model's "
            "maximum length",
            "lower it or choose another model",
        )
    if adapter is None or isinstance(adapter.target_modules, str) or not shapes:
        return
    if any(".experts." in name for name in shapes):
        # In the model, the layers of experts are others than in its files.
        return
    layers = layers_of(shapes)
    for name in adapter.target_modules:
        # Names in checkpoints can have other prefixes than in the model.
        last = name.rpartition(".")[2]
        if last not in layers:
            close = difflib.get_close_matches(last, layers, n=1)
            yield UserError(
                f"runs.{run}.adapter.target_modules",
                f"got {name}, expected the name of a layer with weights of its own",
                f"did you mean {close[0]}?" if close else "choose all-linear",
            )


def sharding_faults(
    run: str, settings: Train, adapter: Adapter | None, config: Path | None
) -> Iterator[UserError]:
    """What of an adapter can't be sharded, by the `config.json` of its base; None if not known."""
    if not adapter or adapter.trains_embeddings or settings.strategy == "ddp":
        return
    if config and has_new_tokens(config):
        tokens = f"{NEW_TOKENS} in {config}"
        yield new_tokens_error(f"runs.{run}.adapter", settings.strategy, tokens)


def _processors(run: str, ray: Ray, batch_size: int) -> Iterator[UserError]:
    path = f"runs.{run}.ray"
    yield from _fault_of(check_cores, ray, path, batch_size)
    if ray.address == "local":
        layout = lay_out_here(ray, batch_size)
        yield from _fault_of(check_gpus, layout, len(machine.gpus()), path)


def _libraries(run: str, settings: Train, adapter: Adapter | None, ray: Ray) -> Iterator[UserError]:
    """Optional libraries that are missing here; nodes of a cluster are asked once connected."""
    if not workers_are_here(ray, settings.launcher):
        return
    library = STRATEGIES[settings.strategy].library
    if library and not find_spec(library):
        yield UserError(
            f"runs.{run}.train.strategy",
            f"{library} is not installed",
            f"pip install 'moray[{library}]', or choose another strategy",
        )
    if ray.include_dashboard and settings.launcher == "ray" and not find_spec("aiohttp_cors"):
        yield UserError(
            f"runs.{run}.ray.include_dashboard",
            "true needs packages that are not installed",
            "pip install 'moray[dashboard]', or set it to false",
        )
    if adapter and adapter.quantize_base == "4bit" and not find_spec("bitsandbytes"):
        yield UserError(
            f"runs.{run}.adapter.quantize_base",
            "4bit needs bitsandbytes, which is not installed",
            "pip install 'moray[qlora]', or remove it",
        )
    if settings.optimizer == "adamw_8bit" and not find_spec("bitsandbytes"):
        yield UserError(
            f"runs.{run}.train.optimizer",
            "adamw_8bit needs bitsandbytes, which is not installed",
            "pip install 'moray[qlora]', or set it to adamw",
        )


def _checkpoint(run: str, settings: Train) -> Iterator[UserError]:
    checkpoint = settings.resume_from_checkpoint
    if checkpoint is None:
        return
    if not (re.fullmatch(r"step-\d{8}", Path(checkpoint).name) and _there(checkpoint)):
        yield UserError(
            f"runs.{run}.train.resume_from_checkpoint",
            f"got {checkpoint}, expected a checkpoint folder, …/checkpoints/step-NNNNNNNN",
            "check the path; it is relative to the working directory",
        )


def _there(checkpoint: str) -> bool:
    if is_remote(checkpoint):
        return step_of(Path(checkpoint)) in storage_with(checkpoint).steps()
    return Path(checkpoint, MANIFEST).is_file()


def _attention(run: str, settings: Train, ray: Ray) -> Iterator[UserError]:
    if settings.attention in ("varlen", "flex") and _on_cpus(ray, settings):
        yield needs_gpu(f"runs.{run}.train.attention", settings.attention)


def _on_cpus(ray: Ray, settings: Train) -> bool:
    """Whether it is certain that workers compute on CPUs."""
    if ray.use_gpu is False:
        return True
    return ray.address == "local" and not lay_out_here(ray, settings.global_batch_size).use_gpu


def _memory(run: str, workers: int, each: int) -> Iterator[UserError]:
    there = psutil.virtual_memory().available
    if _CONTAINER.exists() and (limit := _CONTAINER.read_text().strip()).isdigit():
        there = min(there, int(limit))
    if each * workers > there:
        yield UserError(
            f"runs.{run}.ray.num_workers",
            f"{workers} workers need {each / 1e9:,.1f} GB each for weights, gradients and "
            f"optimizer state, but only {there / 1e9:,.1f} GB of memory are free",
            "lower it, set train.strategy: fsdp2, or train an adapter",
        )


def _storage(run: str, storage_path: str) -> Iterator[UserError]:
    path = f"runs.{run}.ray.storage_path"
    if not is_remote(storage_path):
        yield from _writable(path, Path(storage_path))
        return
    if not all(map(find_spec, needed_libraries(storage_path))):
        yield UserError(
            path, "gs:// needs obstore, which is not installed", "pip install 'moray[gcs]'"
        )
        return
    yield from _fault_of(check_objects, storage_path, path)


def _writable(path: str, folder: Path) -> Iterator[UserError]:
    there = _existing(folder)
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        yield UserError(
            path,
            f"can't write to {folder}, because {there} is not a writable folder",
            "change its permissions or choose another folder",
        )


def _disk(storage: Path, checkpoints: int, results: Path, model: int) -> Iterator[UserError]:
    """Whether there is space for checkpoints and model, which may share a disk."""
    storage, results = _existing(storage), _existing(results)
    needs = {storage: checkpoints, results: model}
    if storage.stat().st_dev == results.stat().st_dev:
        needs = {storage: checkpoints + model}
    for folder, needed in needs.items():
        yield from _fault_of(check_space, folder, needed)


def _fault_of(check: Callable[..., None], *arguments: object) -> Iterator[UserError]:
    """What a check raises."""
    try:
        check(*arguments)
    except UserError as error:
        yield error


def _existing(folder: Path) -> Path:
    """A folder, or its nearest parent that exists."""
    folders = (folder.absolute(), *folder.absolute().parents)
    # `os.path.exists` is false for folders that can't be read, where pathlib would raise.
    return next(path for path in folders if os.path.exists(path))


def needs_gpu(path: str, kind: str) -> UserError:
    """The error for an attention implementation that doesn't work on CPUs."""
    return UserError(
        path,
        f"{kind} needs GPUs: in PyTorch, it has no backward pass on CPUs",
        "set it to auto, or train on GPUs",
    )


def _sockets(launcher: str, ray: Ray) -> Iterator[UserError]:
    """Whether the paths of Ray's sockets are too long, which Ray says once it starts."""
    # As Ray chooses it.
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    most = _LONGEST_SOCKET - len(_RAY_SOCKET.format(os.getpid()))
    if launcher == "ray" and ray.address == "local" and len(os.fsencode(folder)) > most:
        yield UserError(
            "TMPDIR",
            f"got {folder}, which is too long for the paths of Ray's sockets, expected at most "
            f"{most} bytes",
            "set RAY_TMPDIR to a short folder on this machine, or set train.launcher: torchrun",
        )
