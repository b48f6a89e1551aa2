"""Requirements of the metric, known without importing it."""

from collections.abc import Iterator

from moray.errors import UserError
from moray.extras.doctests.sandbox import sandbox_works


def missing(run: str) -> Iterator[UserError]:
    """The missing requirements of a run's metric."""
    if not sandbox_works():
        yield UserError(
            f"runs.{run}.generate.metrics",
            "doctests needs bubblewrap (bwrap) and permission to create user namespaces",
            "install bubblewrap, or remove doctests",
        )
