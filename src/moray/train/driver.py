"""Train a run in its work folder, under its lock, and record the result."""

import math
import shutil
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from moray.config.formats import sequence_length
from moray.config.schema.sections import Data, Ray
from moray.console import say
from moray.errors import ConfigError, UserError
from moray.model.folder import whole_model_and_adapters
from moray.model.shapes import positions_in, shapes_in
from moray.provenance.lineage import software
from moray.provenance.manifest import read_manifest, write_json
from moray.storage.interface import Storage
from moray.storage.opened import is_remote, state_of
from moray.storage.transfer import Delivery, copy_to, deliver, scratch
from moray.tracking.following import tracked
from moray.tracking.interface import TrackedRun, missing_packages, tracked_run
from moray.train.checkpoints import continued_from, newest_step, prepare_work
from moray.train.checks import misfits, unmet_requirements, unsharded
from moray.train.entry import run_job
from moray.train.failures import forget, meaning_of
from moray.train.history import HISTORY, read_history
from moray.train.identity import id_of_training, identity_of, other_libraries
from moray.train.job import Job, Part, RowsThatFit, RunSpec
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
    spec: RunSpec,
    output: Path,
    judge: Judge | None = None,
    rows_that_fit: RowsThatFit | None = None,
) -> None:
    """Train a run, from its newest checkpoint if there is one, and record the result.

    Writes `history.jsonl` and `train.json` to `output`, unless it is a trial of a search. The
    folder of the checkpoints is named after a fingerprint of settings, data, start and code, so
    that a changed run resumes from an old checkpoint only if `train.resume_from_checkpoint` names
    it.

    Args:
        judge: of a trial, what reads its history and says whether to stop it.
        rows_that_fit: see `Job`.

    Raises:
        ConfigError: if the run can't be trained here; nothing has been started.
        UserError: if the run failed, or stopped on request; not if its judge stopped it.
    """
    run, settings, adapter, ray = spec.name, spec.settings, spec.adapter, spec.ray
    identity = identity_of(spec)
    storage = state_of(ray.storage_path, run, identity.fingerprint)
    whole, adapters = whole_model_and_adapters(spec.start)
    shapes, positions = shapes_in(whole), positions_in(whole / "config.json")
    store = read_manifest(spec.parts[0].store)
    # Other rows than those of tokens have none.
    length: int | None = store.get("block_size")
    if length:
        length = sequence_length(store["recipe"]["format"], length)
    found = unmet_requirements(run, settings, adapter, ray, shapes, output, storage.work)
    found += [*misfits(run, length, positions, adapter, shapes)]
    found += [*unsharded(run, settings, adapter, whole / "config.json")]
    if found := [*found, *missing_packages(run, spec.trackers)]:
        raise ConfigError(found)
    output.mkdir(parents=True, exist_ok=True)
    with storage.sole_driver():
        identity = prepare_work(spec, storage, identity, alone=judge is None)
        parts = tuple(_for_workers(part, spec.data) for part in spec.parts)
        newest = newest_step(storage)
        job = Job(
            start=spec.start.absolute(),
            parts=parts,
            work=storage.work.absolute(),
            settings=settings,
            adapter=adapter,
            threads=max(1, int(ray.shares.get("CPU", 1))),
            cache=_cache(ray.storage_path).absolute(),
            task_settings=spec.task_settings,
            remote=storage.remote,
            deliveries=_deliveries([whole, *adapters], parts, spec),
            note=other_libraries(identity, newest),
            rows_that_fit=rows_that_fit,
            proofs=spec.proofs,
        )
        if judge is None:
            say(f"run {run}: {_starting(spec, newest)}")
        described = {
            "run": run,
            "id": id_of_training(storage.records),
            "fingerprint": identity.fingerprint,
            **identity.settings,
            "code": spec.code,
            "inputs": {
                "start": str(spec.start),
                "stores": {part.dataset: str(part.store) for part in spec.parts},
            },
        }
        began = time.perf_counter()
        facts = _launched(job, storage, ray, tracked_run(described), spec.trackers, judge)
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
    lines = list(read_history(output / HISTORY))
    record: dict[str, Any] = {
        **described,
        "continued_from": origin,
        "checkpoint": str(exported),
        **facts,
        "seconds": round(seconds, 1),
        "software": software(),
        "earlier_libraries": identity.earlier_libraries,
        "proof": [compared for line in lines for compared in line.get("proof", ())],
    }
    write_json(output / "train.json", record)
    loss = next(line["loss"] for line in reversed(lines) if "loss" in line)
    resumed = f", resumed from step {facts['resumed_from']}" if facts["resumed_from"] else ""
    say(f"run {run}: {facts['steps']} steps{resumed}, loss {loss:.4f}, {seconds:.0f} s")


def _starting(spec: RunSpec, step: int | None) -> str:
    """What is about to happen: until the first step, workers start in silence."""
    settings, num_steps, reason = spec.settings, spec.settings.max_steps, ""
    if not num_steps:
        stores = (read_manifest(part.store)["splits"]["train"] for part in spec.parts)
        num_rows = sum(store["rows"] for store in stores)
        num_steps = math.ceil(settings.num_epochs * num_rows / settings.global_batch_size)
        plural = "epoch" if settings.num_epochs == 1 else "epochs"
        reason = f" for {settings.num_epochs:g} {plural} of {num_rows:,} rows"
    resuming = f", resuming from step {step:,}" if step else ""
    started = "Ray and its workers" if settings.launcher == "ray" else "its workers"
    threads = int(spec.ray.shares.get("CPU", 1))
    of = f", {threads} threads each" if threads > 1 else ""
    return f"{num_steps:,} steps{reason}{resuming}; starting {started}{of}"


def _launched(
    job: Job,
    storage: Storage,
    ray: Ray,
    following: TrackedRun,
    trackers: tuple[str, ...],
    judge: Judge | None,
) -> dict[str, Any]:
    """What the loop returned, at the end of the run or when it stopped on request."""
    run = following.name
    requests, own = Requests(storage.run_place), prunes_of(storage.records.place)
    # From earlier starts. Requests made since this process started are kept.
    forget(job.work)
    for place in (requests, own):
        place.forget(before=psutil.Process().create_time())
    with (
        shown(job.work, run),
        tracked(trackers, following, job.work, job.work / HISTORY) as ending,
        judged(judge, job.work / HISTORY, own) if judge else nullcontext(),
        stopped_by_signals(requests, run),
    ):
        try:
            facts = beside_signals(lambda: run_job(job, ray, run))
            ending.finished = facts["ended"]
            return facts
        except WorkersFailedError as error:
            raise meaning_of(error, job, run, ray.max_failures) from error


def _deliveries(starts: list[Path], parts: tuple[Part, ...], spec: RunSpec) -> tuple[Delivery, ...]:
    """Start and stores for workers that may be on machines without them."""
    on_this_machine = spec.ray.address == "local" or spec.settings.launcher == "torchrun"
    if on_this_machine or not spec.ray.in_object_store:
        return ()
    groups = [starts, *([part.store] for part in parts)]
    return tuple(deliver(folders, spec.ray.storage_path) for folders in groups)


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


def _for_workers(part: Part, settings: Data) -> Part:
    """The dataset with an absolute path, and where its rows are streamed from."""
    store, url = part.store.absolute(), None
    if settings.loader != "memory":
        url = str(store) if settings.stream_from is None else copy_to(store, settings.stream_from)
    return replace(part, store=store, rows_url=url)
