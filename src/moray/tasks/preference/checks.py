"""Keys of a run that pairs don't have."""

from collections.abc import Iterator

from moray.config.schema.experiment import Run
from moray.config.tasks import FormatName
from moray.errors import UserError


def faults(path: str, run: Run) -> Iterator[UserError]:
    """Faults of a run on pairs."""
    yield from faults_of_answers(path, run, "preference")


def faults_of_answers(path: str, run: Run, format: FormatName) -> Iterator[UserError]:
    """Faults of a run whose rows have two answers each.

    Args:
        format: that of its dataset, for the errors.
    """
    if run.data.tokenize == "on-the-fly":
        yield UserError(
            f"{path}.data.tokenize",
            f"on-the-fly can't be used with a dataset of format: {format}, because the "
            "log-probabilities of the reference are stored with the tokens",
            "set it to ahead",
        )
    if run.data.block_size % 2:
        yield UserError(
            f"{path}.data.block_size",
            f"got {run.data.block_size}, expected an even number, because each answer of a dataset "
            f"of format: {format} has half a row",
            "change it by one",
        )
    if run.train.router_aux_loss:
        yield UserError(
            f"{path}.train.router_aux_loss",
            f"is not for datasets of format: {format}",
            "set it to false",
        )
