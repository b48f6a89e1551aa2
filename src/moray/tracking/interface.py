"""The interface between a run and the trackers that it is sent to."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Protocol

from packaging.requirements import Requirement

from moray.config import extras
from moray.config.tasks import TASK_SECTIONS
from moray.errors import UserError

# What a line of a history has besides its figures.
_NO_FIGURES = ("step", "num_steps", "note", "proof", "eval_sample", "time")
# What `train.json` says of what a training depends on; the sections of other tasks are missing.
_CONFIG = ("fingerprint", "train", "adapter", *TASK_SECTIONS, "inputs", "code")


@dataclass(frozen=True)
class TrackedRun:
    """A training as trackers know it; it keeps its id when it is resumed."""

    name: str
    id: str
    config: dict[str, Any]


@dataclass(frozen=True)
class Point:
    """Figures of a step, by name.

    Attributes:
        step: number of steps done.
        time: when it was logged, in seconds since the epoch.
        figures: such as `loss`; those of several datasets as `eval_losses/{dataset}`.
    """

    step: int
    time: float
    figures: dict[str, float]


@dataclass(frozen=True)
class Results:
    """What came of a training.

    Attributes:
        scores: figures of base and tuned model: on the test split, as `test/{model}/{metric}`, and
            of benchmarks, as `benchmarks/{task}/{model}/{metric}`.
        digests: SHA-256 by file.
    """

    step: int
    scores: dict[str, float] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def tracked_run(record: Mapping[str, Any]) -> TrackedRun:
    """A training from what `train.json` says of it."""
    config = {key: record[key] for key in _CONFIG if key in record}
    return TrackedRun(record["run"], record["id"], config)


class Tracker(Protocol):
    """A run in a tracker, opened.

    It is opened again after every interruption, and then sent the whole history again: what it has
    already must not be there twice afterwards.
    """

    def log(self, points: Sequence[Point]) -> None:
        """Add points, in the order of their steps, from the first one of the history on."""

    def add_results(self, results: Results) -> None:
        """Add what came of the training, in the place of what was added before."""

    def finish(self) -> None:
        """Mark the training as finished."""


def points_of(lines: Iterable[str]) -> Iterator[Point]:
    """The points of lines of a history; notes have none."""
    for line in map(json.loads, lines):
        figures = {key: value for key, value in line.items() if key not in _NO_FIGURES}
        if figures:
            # Histories of earlier versions have no times.
            yield Point(line["step"], line.get("time", 0.0), flat(figures, "/"))


def flat(mapping: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """A nested mapping as one, whose keys are paths."""
    whole: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            inner = flat(value, separator)
            whole |= {f"{key}{separator}{rest}": entry for rest, entry in inner.items()}
        else:
            whole[key] = value
    return whole


def open_tracker(name: str, run: TrackedRun) -> AbstractContextManager[Tracker]:
    """Open a run in a tracker for the body: find it by its id, or create it.

    The module `tracker` of its extra does it, by a function `opened`.
    """
    tracker = extras.part(extras.TRACKERS[name], "tracker")
    opened: AbstractContextManager[Tracker] = tracker.opened(run)
    return opened


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
