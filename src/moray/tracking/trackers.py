"""The trackers by their names in the config."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import cast

from packaging.requirements import Requirement

from moray.errors import UserError
from moray.tracking.interface import TrackedRun, Tracker, TrackerModule


def open_tracker(name: str, run: TrackedRun) -> AbstractContextManager[Tracker]:
    """Open a run in a tracker."""
    module = cast(TrackerModule, import_module(f"moray.tracking.{name}"))
    return module.opened(run)


def missing_packages(run: str, trackers: Sequence[str]) -> Iterator[UserError]:
    """The packages of a run's trackers that are not installed."""
    for name in trackers:
        if missing := [package for package in _packages(name) if not _is_installed(package)]:
            yield UserError(
                f"runs.{run}.tracking",
                f"{name} needs packages that are missing: {', '.join(missing)}",
                f"pip install 'moray[{name}]'",
            )


def _packages(extra: str) -> list[str]:
    """The packages of one of moray's optional extras."""
    found = map(Requirement, requires("moray") or ())
    return sorted(one.name for one in found if one.marker and one.marker.evaluate({"extra": extra}))


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
