"""Search for the settings of a run with the lowest validation loss.

A trial is an ordinary training, which resumes from its own checkpoints. What it came to is recorded
beside them, in the folder of its fingerprint. So a trial is known by its settings, data, start,
code and libraries, whatever search it belongs to.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from moray.config.schema.train import Train
from moray.console import say
from moray.errors import UserError
from moray.extras.search.study import Study, Trajectory, Trial, Verdict, read_trajectory
from moray.provenance.manifest import as_json, write_bytes
from moray.storage.interface import Records
from moray.storage.open import state_of
from moray.train.driver import run_training
from moray.train.failures import DIVERGED
from moray.train.identity import identity_of
from moray.train.spec import RunSpec

_RECORD = "trial.json"


def search(
    run: str,
    start: Path,
    stores: list[Path],
    best: Path,
    trials: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
) -> None:
    """Train one trial after another; write them all, and the settings of the best as an overlay.

    Args:
        cfg: the `cfg` of the run's training without the keys of the space, and the `search`
            section with the values of the space in one form.

    Raises:
        UserError: if a trial failed or stopped on request, or if all of them diverged.
    """
    section = cfg["search"]
    study = Study(section["space"], section["seed"])
    lines: list[dict[str, Any]] = []
    for _ in range(section["trials"]):
        trial = study.next()
        name = f"search {run}, trial {trial.number} of {section['trials']}"
        say(f"{name}: {_words(trial.values)}")
        settings = _with_values(cfg, trial.values)
        training = RunSpec.of_params(
            run, start, stores, settings, {**execution, "tracking": []}, code
        )
        verdict, seconds = _carry_out(trial, training, best.parent)
        study.tell(trial, verdict)
        say(f"{name}: {_outcome(verdict)}")
        lines.append(
            {
                "number": trial.number,
                "values": trial.values,
                "validation_loss": verdict.validation_loss,
                "step": verdict.step,
                "state": verdict.state,
                "seconds": round(seconds, 1),
                "fingerprint": identity_of(training).fingerprint,
            }
        )
    winner = _best(run, lines)
    write_bytes(trials, "".join(json.dumps(line) + "\n" for line in lines).encode())
    write_bytes(best, _overlay(run, winner).encode())
    say(
        f"search {run}: best is trial {winner['number']}, validation loss "
        f"{winner['validation_loss']:.4f}: {_words(winner['values'])}; "
        f"next: snakemake finetune --configfile {best}"
    )


def _with_values(cfg: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    new_cfg = {key: value for key, value in cfg.items() if key != "search"}
    for key, value in values.items():
        section, name = key.removeprefix("data.").split(".")
        # Without an adapter, there is no section for its first key.
        new_cfg[section] = {**(new_cfg[section] or {}), name: value}
    return new_cfg


def _best(run: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    candidates = [line for line in lines if line["state"] == "finished"]
    if not candidates:
        raise UserError(
            f"runs.{run}.search.space",
            "no trial trained to its end with finite losses",
            "lower the learning rates in it",
        )
    # The first of equal ones.
    return min(candidates, key=lambda line: line["validation_loss"])


def _overlay(run: str, trial: dict[str, Any]) -> str:
    settings: dict[str, Any] = {}
    for key, value in trial["values"].items():
        *parents, last = key.split(".")
        section = settings
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    head = (
        f"# The best of a search: trial {trial['number']}, validation loss "
        f"{trial['validation_loss']:.6f} at step {trial['step']}.\n"
    )
    return head + yaml.safe_dump({"runs": {run: settings}})


def _outcome(verdict: Verdict) -> str:
    text = f"{verdict.state} at step {verdict.step}"
    loss = verdict.validation_loss
    return text if loss is None else f"{text}, validation loss {loss:.4f}"


def _words(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {json.dumps(value)}"
        for key, value in values.items()
    )


@dataclass(frozen=True)
class TrialRecord:
    """The record of a trial's training; it diverged if a gradient wasn't finite."""

    trajectory: Trajectory
    diverged: bool = False


@dataclass
class _Progress:
    """The trajectory of a training under way, for the thread that trains and the one that looks."""

    trial: Trial
    settings: Train
    latest: Trajectory | None = None

    def judge(self, history: Path) -> bool:
        self.latest = read_trajectory(
            history, self.settings.early_stopping_patience, self.settings.load_best_model_at_end
        )
        verdict = self.trial.judge(self.latest)
        return verdict is not None and verdict.state == "pruned"


def _carry_out(trial: Trial, training: RunSpec, output: Path) -> tuple[Verdict, float]:
    """Train until there is a verdict on a trial; not at all if its record suffices.

    Returns:
        The verdict, and the seconds that the steps up to it took.

    Raises:
        ConfigError: if it can't be trained here.
        UserError: if it failed, or stopped on request, or there are no validation losses.
    """
    fingerprint = identity_of(training).fingerprint
    records = state_of(training.ray.storage_path, training.name, fingerprint).records
    if (record := _read(records)) and (verdict := _verdict(trial, record)):
        return verdict, _seconds(record.trajectory, verdict)
    progress = _Progress(trial, training.settings)
    fault: UserError | None = None
    try:
        run_training(training, output, progress.judge)
    except UserError as error:
        fault = error
    if progress.latest is None:
        raise fault or RuntimeError("the training ended without having been looked at")
    record = TrialRecord(progress.latest, fault is not None and fault.path == DIVERGED)
    verdict = _verdict(trial, record)
    if verdict is not None:
        records.write(_RECORD, as_json(asdict(record)))
    if fault and not record.diverged:
        raise fault
    if verdict is None:
        raise UserError(
            f"runs.{training.name}.search",
            "trials have no validation losses, because no row is in the validation split",
            "raise the validation_share of its dataset",
        )
    return verdict, _seconds(record.trajectory, verdict)


def _verdict(trial: Trial, record: TrialRecord) -> Verdict | None:
    verdict = trial.judge(record.trajectory)
    if verdict is None and record.diverged:
        return Verdict("diverged", max(record.trajectory.losses, default=0), None)
    return verdict


def _seconds(trajectory: Trajectory, verdict: Verdict) -> float:
    logged = [seconds for step, seconds in trajectory.seconds.items() if step <= verdict.step]
    return max(logged, default=0.0)


def _read(records: Records) -> TrialRecord | None:
    content = records.read(_RECORD)
    if content is None:
        return None
    record = json.loads(content)
    trajectory = record["trajectory"]
    for name in ("losses", "seconds"):
        # JSON has no numbers as keys.
        trajectory[name] = {int(step): value for step, value in trajectory[name].items()}
    return TrialRecord(Trajectory(**trajectory), record["diverged"])
