"""The trackers by their names in the config."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec

from moray.errors import UserError
from moray.tracking.interface import TrackedRun, Tracker

# The packages that each needs. `mlflow-skinny` comes without those for a database.
_PACKAGES = {
    "tensorboard": {"tensorboard": "tensorboard"},
    "mlflow": {"mlflow-skinny": "mlflow", "alembic": "alembic", "sqlalchemy": "sqlalchemy"},
    "wandb": {"wandb": "wandb"},
}


def open_tracker(name: str, run: TrackedRun) -> AbstractContextManager[Tracker]:
    """Open a run in a tracker."""
    match name:
        case "tensorboard":
            from moray.tracking import tensorboard

            return tensorboard.opened(run)
        case "mlflow":
            from moray.tracking import mlflow

            return mlflow.opened(run)
        case "wandb":
            from moray.tracking import wandb

            return wandb.opened(run)
    raise ValueError(name)


def missing_packages(run: str, trackers: Sequence[str]) -> Iterator[UserError]:
    """The packages of a run's trackers that are not installed."""
    for name in trackers:
        packages = _PACKAGES[name].items()
        if missing := [package for package, module in packages if not find_spec(module)]:
            yield UserError(
                f"runs.{run}.tracking",
                f"{name} needs packages that are missing: {', '.join(missing)}",
                f"pip install 'moray[{name}]'",
            )
