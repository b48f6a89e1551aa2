"""What the history of a training says about its settings."""

from dataclasses import dataclass
from pathlib import Path

from moray.train.history import read_history
from moray.train.schedule import Evaluations


@dataclass(frozen=True)
class Trajectory:
    """The validation losses of a training, finished or not.

    Attributes:
        losses: by step, in order.
        num_steps: its last step; 0 before anything is known.
        seconds: that its steps took up to each logged step, without start-up and evaluations.
        patience: see `train.early_stopping_patience`.
        exports_best: see `train.load_best_model_at_end`.
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
    """The trajectory in a history, which may not be there yet.

    Args:
        history: the file.
        patience: see `train.early_stopping_patience`.
        exports_best: see `train.load_best_model_at_end`.
    """
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
