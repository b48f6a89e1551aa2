"""What metrics need, known without importing them: some take seconds to import."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from moray.errors import UserError
from moray.evaluate.doctests import sandbox_works


def missing_for_metrics(run: str, metrics: Sequence[str]) -> Iterator[UserError]:
    """What a run's metrics need and is not installed."""
    key = f"runs.{run}.generate.metrics"
    if "chrf" in metrics and not find_spec("sacrebleu"):
        yield UserError(
            key, "chrf needs a package that is missing: sacrebleu", "pip install 'moray[metrics]'"
        )
    if "doctests" in metrics and not sandbox_works():
        yield UserError(
            key,
            "doctests needs bubblewrap (bwrap) and permission to create user namespaces",
            "install bubblewrap, or remove doctests",
        )
