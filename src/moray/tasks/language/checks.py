"""Keys of a run on text that contradict each other, or are for other tasks."""

from collections.abc import Iterator

from moray.config.schema.experiment import Run
from moray.config.schema.sections import Augmentation
from moray.errors import UserError


def faults(path: str, run: Run) -> Iterator[UserError]:
    """Faults of a run on text."""
    if run.gguf and run.adapter and not run.export.merge_adapter:
        yield UserError(
            f"{path}.gguf",
            "needs a merged model, but the run exports its adapter alone",
            "set export.merge_adapter to true, or gguf to null",
        )
    if run.data.augmentation != Augmentation():
        yield UserError(f"{path}.data.augmentation", "is for images only", "remove the key")
