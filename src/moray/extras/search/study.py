"""The next settings of a search and the trials that it stops early, by Optuna.

Both are functions of the seed and of the verdicts on earlier trials, in their order. So a study
that is rebuilt from records of trials goes on as if it had never been interrupted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from moray.train.history import read_history
from moray.train.schedule import Evaluations

# Optuna's own number is 10, which is more trials than many searches of trainings have.
_RANDOM_TRIALS = 5
# No trial is stopped before so many are finished.
_FINISHED_FIRST = 3

State = Literal["finished", "pruned", "diverged"]


@dataclass(frozen=True)
class Trajectory:
    """The validation losses of a training, finished or not.

    Attributes:
        losses: by step, in order.
        num_steps: its last step; 0 before anything is known.
        seconds: that its steps took up to each logged step, without start-up and evaluations.
    """

    losses: dict[int, float]
    num_steps: int
    seconds: dict[int, float]
    patience: int | None
    exports_best: bool

    def ends_at(self, step: int) -> bool:
        """Whether a step with a loss is the training's last one."""
        return step == self.num_steps or Evaluations(self.patience, self._until(step)).stop

    def exported_loss(self, step: int) -> float:
        """The loss of the model that the training exports if it ends at a step."""
        losses = self._until(step)
        best = Evaluations(None, losses).best
        return losses[best if self.exports_best and best is not None else step]

    def _until(self, last: int) -> dict[int, float]:
        return {step: loss for step, loss in self.losses.items() if step <= last}


def read_trajectory(history: Path, patience: int | None, exports_best: bool) -> Trajectory:
    """The trajectory in a history, which may not be there yet."""
    losses: dict[int, float] = {}
    seconds: dict[int, float] = {}
    num_steps, logged, spent = 0, 0, 0.0
    for line in read_history(history):
        num_steps = line["num_steps"]
        if "eval_loss" in line:
            losses[line["step"]] = line["eval_loss"]
        elif "step_seconds" in line:
            spent += (line["step"] - logged) * line["step_seconds"]
            logged = line["step"]
            seconds[logged] = spent
    return Trajectory(losses, num_steps, seconds, patience, exports_best)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a trial.

    Attributes:
        state: whether it trained to its end, was stopped because earlier trials were better at the
            same step, or ended with a loss that isn't finite.
        step: the step at which that was known.
        validation_loss: of the model that the training would export, or at that step if it was
            pruned; None if it diverged.
    """

    state: State
    step: int
    validation_loss: float | None


class Study:
    """The trials of a search so far."""

    def __init__(self, space: Mapping[str, Mapping[str, Any]], seed: int) -> None:
        """Begin without trials.

        For each key, the space has a list of `choices`, or `low`, `high`, `log` and whether it is
        `integer`.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._seed = dict(sorted(space.items())), seed
        self._distributions = {key: _distribution(each) for key, each in self._space.items()}
        self._study = optuna.create_study(
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_FINISHED_FIRST)
        )

    def next(self) -> "Trial":
        """The next trial; call it after `tell` for the one before.

        Values are drawn at random at first, then by the tree-structured Parzen estimator (Bergstra
        et al., 2011).
        """
        number = len(self._study.trials)
        # A function of the trial's number, not of how many numbers this process has used before.
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        self._study.sampler = optuna.samplers.TPESampler(n_startup_trials=_RANDOM_TRIALS, seed=seed)
        trial = self._study.ask(self._distributions)
        values = {key: _value(self._space[key], trial.params[key]) for key in self._space}
        return Trial(number, values, trial)

    def tell(self, trial: "Trial", verdict: Verdict) -> None:
        if verdict.state == "pruned":
            self._study.tell(trial.optuna_trial, state=TrialState.PRUNED)
        else:
            loss = math.inf if verdict.validation_loss is None else verdict.validation_loss
            self._study.tell(trial.optuna_trial, loss)


class Trial:
    """A trial under way, counted from 0, with values by dotted key."""

    def __init__(self, number: int, values: dict[str, Any], optuna_trial: optuna.Trial) -> None:
        self.number = number
        self.values = values
        self.optuna_trial = optuna_trial
        self._verdict: Verdict | None = None
        self._reported = 0

    def judge(self, trajectory: Trajectory) -> Verdict | None:
        """The verdict on a training, from its beginning; None if it is to go on.

        It doesn't depend on how far the training has come beyond the step of the verdict.
        """
        if self._verdict is not None:
            return self._verdict
        for step, loss in trajectory.losses.items():
            if step <= self._reported:
                continue
            self.optuna_trial.report(loss, step)
            self._reported = step
            if trajectory.ends_at(step):
                self._verdict = _final_verdict(step, trajectory.exported_loss(step))
            elif self.optuna_trial.should_prune():
                self._verdict = Verdict("pruned", step, loss)
            if self._verdict is not None:
                break
        return self._verdict


def _final_verdict(step: int, loss: float) -> Verdict:
    if not math.isfinite(loss):
        return Verdict("diverged", step, None)
    return Verdict("finished", step, loss)


def _distribution(values: Mapping[str, Any]) -> BaseDistribution:
    if "choices" in values:
        # Optuna takes no lists as choices.
        return CategoricalDistribution(range(len(values["choices"])))
    kind = IntDistribution if values["integer"] else FloatDistribution
    return kind(values["low"], values["high"], log=values["log"])


def _value(values: Mapping[str, Any], value: Any) -> Any:
    return values["choices"][value] if "choices" in values else value
