"""Keys of a run that answers don't have, good or bad."""

from collections.abc import Iterator

from moray.config.schema.experiment import Run
from moray.errors import UserError
from moray.tasks.preference.checks import faults_of_answers


def faults(path: str, run: Run) -> Iterator[UserError]:
    """Faults of a run on answers that are good or bad, whose rows are those of pairs."""
    yield from faults_of_answers(path, run, "unpaired-preference")
