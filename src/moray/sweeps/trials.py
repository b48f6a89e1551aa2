"""A trial of a search as an ordinary training, which resumes from its own checkpoints.

What a trial came to is recorded beside them, in the folder of its fingerprint. So a trial is known
by its settings, data, start, code and libraries, whatever search it belongs to.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from moray.config.schema.train import Train
from moray.errors import UserError
from moray.planning.fit import rows_that_fit
from moray.provenance.manifest import as_json
from moray.storage.interface import Records
from moray.storage.opened import state_of
from moray.sweeps.study import Trajectory, Trial, Verdict, read_trajectory
from moray.train.driver import run_training
from moray.train.failures import DIVERGED
from moray.train.identity import identity_of
from moray.train.job import RunSpec

_RECORD = "trial.json"


@dataclass(frozen=True)
class Recorded:
    """What is known of a trial's training; it diverged if a gradient wasn't finite."""

    trajectory: Trajectory
    diverged: bool = False


@dataclass
class _Followed:
    """The trajectory of a training under way, for the thread that trains and the one that looks."""

    trial: Trial
    settings: Train
    latest: Trajectory | None = field(default=None)

    def judge(self, history: Path) -> bool:
        self.latest = read_trajectory(
            history, self.settings.early_stopping_patience, self.settings.load_best_model_at_end
        )
        verdict = self.trial.judge(self.latest)
        return verdict is not None and verdict.state == "pruned"


def carry_out(trial: Trial, training: RunSpec, output: Path) -> tuple[Verdict, float]:
    """Train until there is a verdict on a trial; not at all if what is recorded suffices.

    Returns:
        The verdict, and the seconds that the steps up to it took.

    Raises:
        ConfigError: if it can't be trained here.
        UserError: if it failed, or stopped on request, or there are no validation losses.
    """
    fingerprint = identity_of(training).fingerprint
    records = state_of(training.ray.storage_path, training.name, fingerprint).records
    if (recorded := _read(records)) and (verdict := _verdict(trial, recorded)):
        return verdict, _seconds(recorded.trajectory, verdict)
    followed = _Followed(trial, training.settings)
    fault: UserError | None = None
    try:
        run_training(training, output, followed.judge, rows_that_fit)
    except UserError as error:
        fault = error
    if followed.latest is None:
        raise fault or RuntimeError("the training ended without having been looked at")
    recorded = Recorded(followed.latest, fault is not None and fault.path == DIVERGED)
    verdict = _verdict(trial, recorded)
    if verdict is not None:
        records.write(_RECORD, as_json(asdict(recorded)))
    if fault and not recorded.diverged:
        raise fault
    if verdict is None:
        raise UserError(
            f"runs.{training.name}.search",
            "trials have no validation losses, because no row is in the validation split",
            "raise the validation_share of its dataset",
        )
    return verdict, _seconds(recorded.trajectory, verdict)


def _verdict(trial: Trial, recorded: Recorded) -> Verdict | None:
    verdict = trial.judge(recorded.trajectory)
    if verdict is None and recorded.diverged:
        return Verdict("diverged", max(recorded.trajectory.losses, default=0), None)
    return verdict


def _seconds(trajectory: Trajectory, verdict: Verdict) -> float:
    logged = [seconds for step, seconds in trajectory.seconds.items() if step <= verdict.step]
    return max(logged, default=0.0)


def _read(records: Records) -> Recorded | None:
    content = records.read(_RECORD)
    if content is None:
        return None
    record = json.loads(content)
    trajectory = record["trajectory"]
    for name in ("losses", "seconds"):
        # JSON has no numbers as keys.
        trajectory[name] = {int(step): value for step, value in trajectory[name].items()}
    return Recorded(Trajectory(**trajectory), record["diverged"])
