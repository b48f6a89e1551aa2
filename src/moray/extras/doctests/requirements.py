"""What the metric needs, known without importing it."""

from collections.abc import Iterator

from moray.errors import UserError
from moray.extras.doctests.sandbox import sandbox_works


def missing(run: str) -> Iterator[UserError]:
    """What a run's metric needs and is not here."""
    if not sandbox_works():
        yield UserError(
            f"runs.{run}.generate.metrics",
            "doctests needs bubblewrap (bwrap) and permission to create user namespaces",
            "install bubblewrap, or remove doctests",
        )
