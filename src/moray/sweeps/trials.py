"""A trial of a search as an ordinary training, which resumes from its own checkpoints.

What a trial came to is recorded beside them, in the folder of its fingerprint. So a trial is known
by its settings, data, start, code and libraries, whatever search it belongs to.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moray.config.schema import Adapter, Data, Ray, Train
from moray.errors import UserError
from moray.provenance.manifest import as_json
from moray.storage.interface import Records
from moray.storage.opened import state_of
from moray.sweeps.study import Trial, Verdict
from moray.sweeps.trajectory import Trajectory, read_trajectory
from moray.train.driver import run_training
from moray.train.failures import DIVERGED
from moray.train.identity import identity_of
from moray.train.job import Part

_RECORD = "trial.json"


@dataclass(frozen=True)
class Training:
    """Everything that a trial's training is made from.

    Attributes:
        run: the run that is searched for.
        start: Hugging Face folder to start from.
        stores: stores of its rows, by dataset.
        shares: shares of the datasets.
        settings: the `train` section with the trial's values.
        adapter: the `adapter` section with the trial's values.
        task_settings: the sections that only its task reads.
        data_settings: its `data` section.
        ray_settings: its `ray` section.
        code: digest of the code that the result depends on.
    """

    run: str
    start: Path
    stores: dict[str, Path]
    shares: dict[str, float]
    settings: Train
    adapter: Adapter | None
    task_settings: dict[str, Any]
    data_settings: Data
    ray_settings: Ray
    code: str

    @property
    def fingerprint(self) -> str:
        """The fingerprint that its checkpoints are below."""
        parts = [
            Part(dataset, store.absolute(), self.shares[dataset])
            for dataset, store in self.stores.items()
        ]
        return identity_of(
            self.settings, self.adapter, self.start, parts, self.code, self.task_settings
        ).fingerprint


@dataclass(frozen=True)
class Recorded:
    """What is known of a trial's training.

    Attributes:
        trajectory: its validation losses so far.
        diverged: whether it ended with a gradient that isn't finite.
    """

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


def carry_out(trial: Trial, training: Training, output: Path) -> tuple[Verdict, float]:
    """Train until there is a verdict on a trial; not at all if what is recorded suffices.

    Args:
        trial: the trial.
        training: what it trains.
        output: folder of the search's results.

    Returns:
        The verdict, and the seconds that the steps up to it took.

    Raises:
        ConfigError: if it can't be trained here.
        UserError: if it failed, or stopped on request, or there are no validation losses.
    """
    fingerprint = training.fingerprint
    records = state_of(training.ray_settings.storage_path, training.run, fingerprint).records
    if (recorded := _read(records)) and (verdict := _verdict(trial, recorded)):
        return verdict, _seconds(recorded.trajectory, verdict)
    followed = _Followed(trial, training.settings)
    fault: UserError | None = None
    try:
        _train(training, followed, output)
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
            f"runs.{training.run}.search",
            "trials have no validation losses, because no row is in the validation split",
            "raise the validation_share of its dataset",
        )
    return verdict, _seconds(recorded.trajectory, verdict)


def _train(training: Training, followed: _Followed, output: Path) -> None:
    run_training(
        run=training.run,
        start=training.start,
        stores=training.stores,
        output=output,
        settings=training.settings,
        adapter=training.adapter,
        task_settings=training.task_settings,
        data_settings=training.data_settings,
        ray_settings=training.ray_settings,
        code=training.code,
        shares=training.shares,
        judge=followed.judge,
    )


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
