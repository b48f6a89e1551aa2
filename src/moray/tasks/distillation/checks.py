"""Keys of a run on text that exclude a teacher."""

from collections.abc import Iterator

from moray.config.schema.experiment import Run
from moray.errors import UserError


def faults(path: str, run: Run) -> Iterator[UserError]:
    """Faults of a run with a teacher."""
    if run.data.tokenize == "on-the-fly":
        yield UserError(
            f"{path}.data.tokenize",
            "on-the-fly can't be used with a teacher, whose predictions are stored with the tokens",
            "set it to ahead",
        )
