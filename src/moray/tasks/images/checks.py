"""Keys of a run that images don't have."""

from collections.abc import Iterator

from moray.config.schema.experiment import Run
from moray.errors import UserError


def faults(path: str, run: Run) -> Iterator[UserError]:
    """Faults of a run on images."""
    if run.adapter:
        yield UserError(
            f"{path}.adapter", "adapters are for language models only", "set it to null"
        )
    if run.train.attention in ("varlen", "flex"):
        yield UserError(
            f"{path}.train.attention",
            f"{run.train.attention} is for rows of documents, and images have none",
            "set it to auto, sdpa or eager",
        )
    if run.generate.metrics:
        yield UserError(f"{path}.generate.metrics", "images have no continuations", "set it to []")
    if run.benchmarks.tasks:
        yield UserError(
            f"{path}.benchmarks.tasks", "benchmarks are for language models only", "set it to []"
        )
    if run.gguf:
        yield UserError(f"{path}.gguf", "is for language models only", "set it to null")
    if run.data.tokenize != "ahead":
        yield UserError(f"{path}.data.tokenize", "images have no tokens", "remove the key")
    if run.train.router_aux_loss:
        yield UserError(
            f"{path}.train.router_aux_loss",
            "is for language models, not for images",
            "set it to false",
        )
