"""Train a run in its work folder, under its lock, and record the result."""

import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from moray.config.schema.sections import Data
from moray.config.schema.strategies import STRATEGIES
from moray.config.tasks import sequence_length
from moray.console import say
from moray.errors import ConfigError, StoppedError
from moray.model.folder import whole_model_and_adapters
from moray.model.shapes import positions_in, shapes_in
from moray.provenance.lineage import software
from moray.provenance.manifest import read_manifest, write_json
from moray.storage.interface import Storage
from moray.storage.objects import open_objects
from moray.storage.open import is_remote, needed_libraries, state_of
from moray.storage.transfer import Delivery, copy_to, scratch
from moray.tracking.following import Ending, follow_run
from moray.tracking.interface import TrackedRun, missing_packages, run_of_record
from moray.train.checkpoint.continuation import continued_from, prepare_work
from moray.train.checkpoint.keep import newest_step
from moray.train.checks import missing_requirements, model_faults, sharding_faults
from moray.train.failures import (
    MEANING,
    collective_timeout,
    forget,
    meaning_of,
    stacks_name,
)
from moray.train.history import HISTORY, read_history
from moray.train.identity import id_of_training, identity_of, other_libraries
from moray.train.performance import gc_disabled
from moray.train.schedule import Evaluations, never_stops_early
from moray.train.spec import Part, RunSpec
from moray.train.supervision import (
    Judge,
    Requests,
    ask_judge,
    prunes_of,
    run_outside_main_thread,
    show_progress,
    stop_on_signals,
)
from moray.workers.entry import Worker
from moray.workers.exchange import Exchange, deliver_inputs
from moray.workers.launch import Launch, WorkersFailedError
from moray.workers.run import run_on_workers

# What workers have sent, below the run's URL.
_LIVE = "live"


def run_training(spec: RunSpec, output: Path, judge: Judge | None = None) -> None:
    """Train a run, from its newest checkpoint if there is one, and record the result.

    Writes `history.jsonl` and `train.json` to `output`, unless it is a trial of a search. The
    folder of the checkpoints is named after a fingerprint of settings, data, start and code, so
    that a changed run resumes from an old checkpoint only if `train.resume_from_checkpoint` names
    it.

    Args:
        judge: of a trial, what reads its history and says whether to stop it.

    Raises:
        ConfigError: if the run can't be trained here; nothing has been started.
        UserError: if the run failed; `StoppedError` if it was asked to stop, but not by its judge.
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
    faults = missing_requirements(run, settings, adapter, ray, shapes, output, storage.work)
    faults += [*model_faults(run, length, positions, adapter, shapes)]
    faults += [*sharding_faults(run, settings, adapter, whole / "config.json")]
    if faults := [*faults, *missing_packages(run, spec.trackers)]:
        raise ConfigError(faults)
    output.mkdir(parents=True, exist_ok=True)
    with storage.sole_driver():
        identity = prepare_work(spec, storage, identity, alone=judge is None)
        newest = newest_step(storage)
        placed = replace(
            spec,
            start=spec.start.absolute(),
            parts=tuple(_for_workers(part, spec.data) for part in spec.parts),
            work=storage.work.absolute(),
            cache=_cache(ray.storage_path).absolute(),
            remote=storage.remote,
            note=other_libraries(identity, newest),
        )
        deliveries = _deliveries(placed, [whole, *adapters])
        if judge is None:
            say(f"run {run}: {_starting(spec, newest)}")
            # That of steps that the config names was said before the first job.
            if not settings.max_steps and (line := never_stops_early(settings, _steps(spec)[0])):
                say(f"warning: runs.{run}.train.early_stopping_patience: {line}")
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
        with _follow(placed, storage, run_of_record(described), judge) as ending:
            facts = run_outside_main_thread(lambda: train_on_workers(placed, deliveries))
            ending.finished = facts["ended"]
        seconds = time.perf_counter() - began
        ended, pruned = facts.pop("ended"), facts.pop("pruned")
        if judge and (ended or pruned):
            return
        if not ended:
            raise StoppedError(
                f"runs.{run}",
                f"stopped at step {facts['steps']} as requested, and saved a checkpoint",
                "run the same command again to continue from there",
            )
        shutil.copyfile(storage.work / HISTORY, output / HISTORY)
        exported = _fetch_exported(storage, facts["exported_step"], output)
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
    steps = _trained_steps(facts["steps"], lines, settings.early_stopping_patience)
    say(f"run {run}: {steps}{resumed}, loss {loss:.4f}, {seconds:.0f} s")


def _trained_steps(step: int, history: Sequence[Mapping[str, Any]], patience: int | None) -> str:
    """The number of steps of a run, and why they are fewer than planned."""
    num_steps = history[-1]["num_steps"]
    losses = {line["step"]: line["eval_loss"] for line in history if "eval_loss" in line}
    evaluations = Evaluations(patience, losses)
    if step == num_steps or not evaluations.stop or not (best := evaluations.best):
        return f"{step} steps"
    plural = "s" * (patience != 1)
    return (
        f"{step} of {num_steps} steps, stopped early since {patience} evaluation{plural} had no "
        f"lower validation loss than step {best} ({losses[best]:.4f})"
    )


def _steps(spec: RunSpec) -> tuple[int, str]:
    """The number of steps that are planned, and the reason if the config doesn't have it."""
    settings = spec.settings
    if settings.max_steps:
        return settings.max_steps, ""
    stores = (read_manifest(part.store)["splits"]["train"] for part in spec.parts)
    num_rows = sum(store["rows"] for store in stores)
    num_steps = math.ceil(settings.num_epochs * num_rows / settings.global_batch_size)
    plural = "epoch" if settings.num_epochs == 1 else "epochs"
    return num_steps, f" for {settings.num_epochs:g} {plural} of {num_rows:,} rows"


def _starting(spec: RunSpec, step: int | None) -> str:
    """What is about to happen: until the first step, workers start in silence."""
    settings, (num_steps, reason) = spec.settings, _steps(spec)
    resuming = f", resuming from step {step:,}" if step else ""
    if spec.adapter and not spec.adapter.create_new_adapter:
        reason += f", training the adapter in {spec.start}"
    started = "Ray and its workers" if settings.launcher == "ray" else "its workers"
    threads = int(spec.ray.shares.get("CPU", 1))
    of = f", {threads} threads each" if threads > 1 else ""
    return f"{num_steps:,} steps{reason}{resuming}; starting {started}{of}"


@contextmanager
def _follow(
    spec: RunSpec, storage: Storage, following: TrackedRun, judge: Judge | None
) -> Iterator[Ending]:
    """During the body, progress is shown and sent, and requests are passed on.

    Raises:
        UserError: what explains that workers failed for good.
    """
    requests, own = Requests(storage.run_place), prunes_of(storage.records.place)
    # From earlier starts. Requests made since this process started are kept.
    forget(spec.work)
    for place in (requests, own):
        place.forget(before=psutil.Process().create_time())
    with (
        show_progress(spec.work, spec.name),
        follow_run(spec.trackers, following, spec.work, spec.work / HISTORY) as ending,
        ask_judge(judge, spec.work / HISTORY, own) if judge else nullcontext(),
        stop_on_signals(requests, spec.name),
    ):
        try:
            yield ending
        except WorkersFailedError as error:
            raise meaning_of(error, spec) from error


def train_on_workers(
    spec: RunSpec, deliveries: Mapping[Path, Delivery] = MappingProxyType({})
) -> dict[str, Any]:
    """Train a run, whose paths are absolute, on the workers that the config asks for.

    Args:
        deliveries: what brings start and stores to machines that don't have them.

    Returns:
        What the loop returned.

    Raises:
        UserError: the first that any worker raised, or if there are too few resources.
        WorkersFailedError: if workers were lost or failed more often than the config allows.
    """
    launch = Launch(
        ray=spec.ray,
        path=f"runs.{spec.name}.ray",
        folder=spec.work,
        launcher=spec.settings.launcher,
        timeout=collective_timeout(spec.settings),
        batch_size=spec.settings.global_batch_size,
        streams=spec.parts[0].rows_url is not None,
        libraries=(*_libraries(spec), *needed_libraries(spec.ray.storage_path)),
        exchange=_exchange(spec, deliveries),
    )
    # All workers return the same.
    return run_on_workers(train_on_worker, spec, launch)[0]


def train_on_worker(spec: RunSpec, worker: Worker) -> dict[str, Any]:
    """The training loop. Imported only in workers, because its libraries take seconds to load."""
    # Garbage collections during these imports would take half a second.
    with gc_disabled():
        from moray.train.loop import train
    return train(spec, worker)


def _libraries(spec: RunSpec) -> Iterator[str]:
    if library := STRATEGIES[spec.settings.strategy].library:
        yield library
    if spec.adapter:
        yield "peft"
    in_4bit = spec.adapter and spec.adapter.quantize_base == "4bit"
    if in_4bit or spec.settings.optimizer == "adamw_8bit":
        yield "bitsandbytes"


def _exchange(spec: RunSpec, deliveries: Mapping[Path, Delivery]) -> Exchange | None:
    """What workers exchange with this start of the driver, below the URL of the run's state."""
    if spec.remote is None:
        return None
    # What drivers that were killed have left; this one has the run's lock.
    leftovers = open_objects(f"{spec.remote.url}/{_LIVE}")
    leftovers.delete(leftovers.list_objects(""))
    # The folder's name is of this start of the driver alone.
    url = f"{spec.remote.url}/{_LIVE}/{spec.work.name}"
    return Exchange(url, dict(deliveries), _files, of_an_attempt=(MEANING,))


def _files(rank: int) -> tuple[str, ...]:
    """The files that a worker writes into the work folder."""
    return (stacks_name(rank), MEANING, *([HISTORY] if rank == 0 else []))


def _deliveries(spec: RunSpec, start: list[Path]) -> dict[Path, Delivery]:
    """Start and stores for workers that may be on machines without them."""
    on_this_machine = spec.ray.address == "local" or spec.settings.launcher == "torchrun"
    if on_this_machine or not spec.ray.in_object_store:
        return {}
    inputs = {spec.start: start} | {part.store: [part.store] for part in spec.parts}
    return deliver_inputs(inputs, spec.ray.storage_path)


def _fetch_exported(storage: Storage, step: int, output: Path) -> Path:
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
