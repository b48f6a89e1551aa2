"""Requirements of a search, known without importing its library."""

from collections.abc import Iterator
from importlib.util import find_spec

from moray.config.schema.experiment import Run
from moray.errors import UserError


def faults(name: str, run: Run) -> Iterator[UserError]:
    """Why a run's search can't be carried out here, besides what its trainings need."""
    if not find_spec("optuna"):
        yield UserError(
            f"runs.{name}.search",
            "needs optuna, which is not installed",
            "pip install 'moray[search]'",
        )
