"""Keys of a run that texts with labels don't have."""

from collections.abc import Iterator

from moray.config.schema.experiment import Run
from moray.errors import UserError


def faults(path: str, run: Run) -> Iterator[UserError]:
    """Faults of a run on texts with labels."""
    of_language = {
        "adapter.quantize_base": run.adapter and run.adapter.quantize_base,
        "benchmarks.tasks": run.benchmarks.tasks,
        "data.tokenize": run.data.tokenize != "ahead",
        "generate.metrics": run.generate.metrics,
        "gguf": run.gguf,
        "train.attention": run.train.attention in ("varlen", "flex"),
        "train.router_aux_loss": run.train.router_aux_loss,
    }
    for key, value in of_language.items():
        if value:
            yield UserError(f"{path}.{key}", "is for language models only", "remove the key")
