"""Train a run in its work folder, under its lock, and record the result."""

import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from moray.config.schema import Adapter, Data, Ray, Train
from moray.console import say
from moray.errors import ConfigError, UserError
from moray.model.folder import whole_model_and_adapters
from moray.model.shapes import positions_in, shapes_in
from moray.provenance.lineage import software
from moray.provenance.manifest import read_manifest, write_json
from moray.rows.remote import copy_to
from moray.storage.interface import Delivery, Storage
from moray.storage.node import scratch
from moray.storage.opened import deliver, is_remote, state_of
from moray.tracking.following import tracked
from moray.tracking.interface import TrackedRun, missing_packages, tracked_run
from moray.train.checkpoints import newest_step
from moray.train.checks import misfits, unmet_requirements
from moray.train.continuation import continued_from, prepare_work
from moray.train.entry import run_job
from moray.train.failures import forget, meaning_of
from moray.train.history import HISTORY, read_history
from moray.train.identity import id_of_training, identity_of, other_libraries
from moray.train.job import Job, Part
from moray.train.supervision import (
    Judge,
    Requests,
    beside_signals,
    judged,
    prunes_of,
    shown,
    stopped_by_signals,
)
from moray.workers.launch import WorkersFailedError


def run_training(
    run: str,
    start: Path,
    stores: dict[str, Path],
    output: Path,
    settings: Train,
    adapter: Adapter | None,
    task_settings: dict[str, Any],
    data_settings: Data,
    ray_settings: Ray,
    code: str,
    shares: dict[str, float],
    trackers: Sequence[str] = (),
    judge: Judge | None = None,
) -> None:
    """Train a run, from its newest checkpoint if there is one, and record the result.

    Writes `history.jsonl` and `train.json` to `output`, unless it is a trial of a search. The
    folder of the checkpoints is named after a fingerprint of settings, data, start and code, so
    that a changed run resumes from an old checkpoint only if `train.resume_from_checkpoint` names
    it.

    Args:
        run: name of the run.
        start: Hugging Face folder to start from.
        stores: stores of its rows, by dataset.
        output: the run's folder.
        settings: its `train` section.
        adapter: its `adapter` section.
        task_settings: the sections that only its task reads, by name.
        data_settings: its `data` section.
        ray_settings: its `ray` section.
        code: digest of the code that the result depends on.
        shares: shares of the datasets in what the loss is averaged over.
        trackers: that the history is sent to.
        judge: of a trial, what reads its history and says whether to stop it.

    Raises:
        ConfigError: if the run can't be trained here; nothing has been started.
        UserError: if the run failed, or stopped on request; not if its judge stopped it.
    """
    parts = tuple(
        Part(dataset, store.absolute(), shares[dataset]) for dataset, store in stores.items()
    )
    identity = identity_of(settings, adapter, start, parts, code, task_settings)
    storage = state_of(ray_settings.storage_path, run, identity.fingerprint)
    whole, adapters = whole_model_and_adapters(start)
    shapes, positions = shapes_in(whole), positions_in(whole / "config.json")
    # Other rows than packed tokens have none.
    block_size = read_manifest(parts[0].store).get("block_size")
    found = unmet_requirements(run, settings, adapter, ray_settings, shapes, output, storage.work)
    found += [*misfits(run, block_size, positions, adapter, shapes)]
    if found := [*found, *missing_packages(run, trackers)]:
        raise ConfigError(found)
    output.mkdir(parents=True, exist_ok=True)
    with storage.sole_driver():
        identity = prepare_work(
            run, storage, identity, settings, adapter, start, parts, judge is None
        )
        job = Job(
            start=start.absolute(),
            parts=tuple(
                replace(part, rows_url=_rows_url(part.store, data_settings)) for part in parts
            ),
            work=storage.work.absolute(),
            settings=settings,
            adapter=adapter,
            threads=max(1, int(ray_settings.resources_per_worker.get("CPU", 1))),
            cache=_cache(ray_settings.storage_path).absolute(),
            task_settings=task_settings,
            remote=storage.remote,
            deliveries=_deliveries([whole, *adapters], parts, settings, ray_settings),
            note=other_libraries(identity, newest_step(storage)),
        )
        described = {
            "run": run,
            "id": id_of_training(storage.records),
            "fingerprint": identity.fingerprint,
            **identity.settings,
            "code": code,
            "inputs": {
                "start": str(start),
                "stores": {dataset: str(store) for dataset, store in stores.items()},
            },
        }
        began = time.perf_counter()
        facts = _launched(job, storage, ray_settings, tracked_run(described), trackers, judge)
        seconds = time.perf_counter() - began
        ended, pruned = facts.pop("ended"), facts.pop("pruned")
        if judge and (ended or pruned):
            return
        if not ended:
            raise UserError(
                f"runs.{run}",
                f"stopped at step {facts['steps']} as requested, and saved a checkpoint",
                "run the same command again to continue from there",
            )
        shutil.copyfile(storage.work / HISTORY, output / HISTORY)
        exported = _brought_here(storage, facts["exported_step"], output)
        origin = continued_from(storage)
    record: dict[str, Any] = {
        **described,
        "continued_from": origin,
        "checkpoint": str(exported),
        **facts,
        "seconds": round(seconds, 1),
        "software": software(),
        "earlier_libraries": identity.earlier_libraries,
    }
    write_json(output / "train.json", record)
    lines = list(read_history(output / HISTORY))
    loss = next(line["loss"] for line in reversed(lines) if "loss" in line)
    resumed = f", resumed from step {facts['resumed_from']}" if facts["resumed_from"] else ""
    say(f"run {run}: {facts['steps']} steps{resumed}, loss {loss:.4f}, {seconds:.0f} s")


def _launched(
    job: Job,
    storage: Storage,
    ray_settings: Ray,
    following: TrackedRun,
    trackers: Sequence[str],
    judge: Judge | None,
) -> dict[str, Any]:
    """What the loop returned, at the end of the run or when it stopped on request."""
    run = following.name
    requests = Requests(storage.run_place)
    # From earlier starts. Requests made since this process started are kept.
    forget(job.work)
    requests.forget(before=psutil.Process().create_time())
    own = prunes_of(storage.records.place)
    own.forget(before=psutil.Process().create_time())
    with (
        shown(job.work, run),
        tracked(trackers, following, job.work, job.work / HISTORY) as ending,
        judged(judge, job.work / HISTORY, own) if judge else nullcontext(),
        stopped_by_signals(requests, run),
    ):
        try:
            facts = beside_signals(lambda: run_job(job, ray_settings, run))
            ending.finished = facts["ended"]
            return facts
        except WorkersFailedError as error:
            raise meaning_of(error, job, run, ray_settings.max_failures) from error


def _deliveries(
    starts: list[Path], parts: tuple[Part, ...], settings: Train, ray_settings: Ray
) -> tuple[Delivery, ...]:
    """Start and stores for workers that may be on machines without them."""
    on_this_machine = ray_settings.address == "local" or settings.launcher == "torchrun"
    if on_this_machine or not ray_settings.in_object_store:
        return ()
    groups = [starts, *([part.store] for part in parts)]
    return tuple(deliver(folders, ray_settings.storage_path) for folders in groups)


def _brought_here(storage: Storage, step: int, output: Path) -> Path:
    """The checkpoint of a step where export finds it."""
    fetched = storage.fetch(step)
    if storage.remote is None:
        return fetched
    there = output / "checkpoint"
    shutil.rmtree(there, ignore_errors=True)
    shutil.move(fetched, there)
    return there


def _cache(storage_path: str) -> Path:
    """The folder for compiled code; it can't clash with a run, whose name begins with no dot."""
    return Path(scratch() if is_remote(storage_path) else storage_path, ".compiled")


def _rows_url(store: Path, settings: Data) -> str | None:
    if settings.loader == "memory":
        return None
    return str(store) if settings.stream_from is None else copy_to(store, settings.stream_from)
