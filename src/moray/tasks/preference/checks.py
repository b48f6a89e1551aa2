"""Keys of a run that pairs don't have."""

from collections.abc import Iterator

from moray.config.schema.experiment import Run
from moray.errors import UserError


def faults(path: str, run: Run) -> Iterator[UserError]:
    """Faults of a run on pairs."""
    if run.data.tokenize == "on-the-fly":
        yield UserError(
            f"{path}.data.tokenize",
            "on-the-fly can't be used with a preference dataset, because the log-probabilities of "
            "the reference are stored with the tokens",
            "set it to ahead",
        )
    if run.data.block_size % 2:
        yield UserError(
            f"{path}.data.block_size",
            f"got {run.data.block_size}, expected an even number, because each answer of a "
            "preference dataset has half a row",
            "change it by one",
        )
    if run.train.router_aux_loss:
        yield UserError(
            f"{path}.train.router_aux_loss", "is not for preference datasets", "set it to false"
        )
