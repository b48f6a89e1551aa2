"""What would end a run later, looked for before anything long begins; all of it at once."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil

from moray.config.schema import Adapter, Ray, Train
from moray.errors import UserError
from moray.model.shapes import (
    Shapes,
    num_adapter_parameters,
    num_in_linear_layers,
    num_parameters,
)
from moray.provenance.space import check_space
from moray.train.engine.footprint import footprint, frozen_bytes
from moray.train.engine.gpu_only import needs_gpu
from moray.workers.cluster import check_cores

_FLOAT = 4
# A parameter's weight and AdamW's two moments.
_IN_CHECKPOINT = 3 * _FLOAT
# Of a container: bytes, or "max"; not there elsewhere.
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def faults(
    run: str,
    settings: Train,
    adapter: Adapter | None,
    ray: Ray,
    shapes: Shapes | None,
    results: Path,
    work: Path | None = None,
) -> list[UserError]:
    """Why a run couldn't be trained here.

    Args:
        run: its name.
        settings: its `train` section.
        adapter: its `adapter` section.
        ray: its `ray` section.
        shapes: of the weights that it starts from; None if they aren't known yet.
        results: folder below which its model will lie.
        work: folder of its checkpoints; None if it isn't known yet.
    """
    found = [
        *_processors(run, ray),
        *_libraries(run, settings, adapter, ray),
        *_attention(run, settings, ray),
        *_writable(f"runs.{run}.ray.storage_path", Path(ray.storage_path)),
        *_writable("the working directory", results),
    ]
    if shapes is None:
        return found
    whole = num_parameters(shapes)
    trained = whole if adapter is None else num_adapter_parameters(shapes, adapter.rank)
    linear = num_in_linear_layers(shapes)
    frozen = frozen_bytes(adapter, linear=linear, other=whole - linear)
    if ray.address == "local" and _on_cpus(ray):
        found += _memory(run, settings, ray, trained, frozen)
    kept = settings.save_total_limit + 1 + settings.load_best_model_at_end
    if settings.max_steps:
        kept = min(kept, -(-settings.max_steps // settings.save_steps))
    # A run that goes on has some of them already; until it is known which, any may be its own.
    folders = [work] if work else Path(ray.storage_path, run).glob("*")
    files = [file for folder in folders for file in folder.glob("checkpoints/step-????????/*")]
    missing = kept * _IN_CHECKPOINT * trained - sum(file.stat().st_size for file in files)
    found += _disk(Path(ray.storage_path), max(0, missing), results, _FLOAT * whole)
    return found


def _processors(run: str, ray: Ray) -> Iterator[UserError]:
    try:
        check_cores(ray, f"runs.{run}.ray")
    except UserError as error:
        yield error
    if ray.address == "local" and ray.use_gpu is True:
        # Takes seconds, so only where it is asked for.
        import torch

        if (there := torch.cuda.device_count()) < ray.num_workers:
            yield UserError(
                f"runs.{run}.ray.use_gpu",
                f"got true for {ray.num_workers} workers, expected a GPU for each; this machine "
                f"has {there}",
                "set it to auto, or lower num_workers",
            )


def _libraries(run: str, settings: Train, adapter: Adapter | None, ray: Ray) -> Iterator[UserError]:
    """Those that aren't installed with moray; what a cluster elsewhere has isn't known."""
    if ray.address != "local":
        return
    if settings.strategy == "deepspeed" and not find_spec("deepspeed"):
        yield UserError(
            f"runs.{run}.train.strategy",
            "got deepspeed, which is not installed",
            "pip install -e '.[deepspeed]', or choose fsdp2",
        )
    if adapter and adapter.quantize_base and not find_spec("bitsandbytes"):
        yield UserError(
            f"runs.{run}.adapter.quantize_base",
            f"got {adapter.quantize_base}, whose library bitsandbytes is not installed",
            "pip install -e '.[qlora]', or leave it out",
        )


def _attention(run: str, settings: Train, ray: Ray) -> Iterator[UserError]:
    if settings.attention in ("varlen", "flex") and _on_cpus(ray):
        yield needs_gpu(f"runs.{run}.train.attention", settings.attention)


def _on_cpus(ray: Ray) -> bool:
    """Whether it is certain that workers compute on CPUs."""
    if ray.use_gpu is False:
        return True
    return ray.address == "local" and not _gpus_are_there()


def _gpus_are_there() -> bool:
    """Without PyTorch, which takes seconds to say so."""
    return any(Path("/dev", name).exists() for name in ("nvidiactl", "kfd"))


def _memory(run: str, settings: Train, ray: Ray, trained: int, frozen: int) -> Iterator[UserError]:
    each = footprint(settings, trained, frozen, ray.num_workers).total
    there = psutil.virtual_memory().available
    if _CONTAINER.exists() and (limit := _CONTAINER.read_text().strip()).isdigit():
        there = min(there, int(limit))
    if each * ray.num_workers > there:
        yield UserError(
            f"runs.{run}.ray.num_workers",
            f"got {ray.num_workers} workers that hold {each / 1e9:,.1f} GB each in weights, "
            f"gradients and optimizer state, expected what fits into the {there / 1e9:,.1f} GB of "
            "memory that are free",
            "lower it, set train.strategy: fsdp2, or train an adapter",
        )


def _writable(path: str, folder: Path) -> Iterator[UserError]:
    there = _existing(folder)
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        yield UserError(
            path,
            f"got {folder}, expected a folder that can be written to; {there} is none",
            "change its permissions or choose another",
        )


def _disk(storage: Path, checkpoints: int, results: Path, model: int) -> Iterator[UserError]:
    """Room for both, which may have to share a disk."""
    storage, results = _existing(storage), _existing(results)
    needs = {storage: checkpoints, results: model}
    if storage.stat().st_dev == results.stat().st_dev:
        needs = {storage: checkpoints + model}
    for folder, needed in needs.items():
        try:
            check_space(folder, needed)
        except UserError as error:
            yield error


def _existing(folder: Path) -> Path:
    """A folder, or the nearest one above it that is there."""
    folders = (folder.absolute(), *folder.absolute().parents)
    # What may not be looked into isn't there, where pathlib would raise.
    return next(path for path in folders if os.path.exists(path))
