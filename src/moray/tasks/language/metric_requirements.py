"""Requirements of metrics, known without importing them: some take seconds to import."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from moray.config import extras
from moray.errors import UserError


def missing(run: str, metrics: Sequence[str]) -> Iterator[UserError]:
    """The missing requirements of a run's metrics."""
    key = f"runs.{run}.generate.metrics"
    if "chrf" in metrics and not find_spec("sacrebleu"):
        yield UserError(
            key, "chrf needs a package that is missing: sacrebleu", "pip install 'moray[metrics]'"
        )
    for name in metrics:
        if folder := extras.METRICS.get(name):
            yield from extras.part(folder, "requirements").missing(run)
