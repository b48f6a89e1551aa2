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

# Keys of a line of a history that aren't figures.
_NO_FIGURES = ("step", "num_steps", "note", "proof", "eval_sample", "time")
# Keys of `train.json` that a training depends on; the sections of other tasks are missing.
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
    """The results of a training.

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


def run_of_record(record: Mapping[str, Any]) -> TrackedRun:
    """The run of a training, from the content of its `train.json`."""
    config = {key: record[key] for key in _CONFIG if key in record}
    return TrackedRun(record["run"], record["id"], config)


class Tracker(Protocol):
    """An open run in a tracker.

    After every interruption, it is opened again and gets the whole history again: points that it
    has already must not be there twice.
    """

    def log(self, points: Sequence[Point]) -> None:
        """Add points, in the order of their steps, from the first one of the history on."""

    def add_results(self, results: Results) -> None:
        """Add the results of the training, in place of those that were added before."""

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
    """A nested mapping as a flat one, whose keys are paths."""
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

    The module `tracker` of the tracker's extra has a function `open_run` for it.
    """
    module = extras.part(extras.TRACKERS[name], "tracker")
    tracker: AbstractContextManager[Tracker] = module.open_run(run)
    return tracker


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
    requirements = map(Requirement, requires("moray") or ())
    return sorted(
        one.name for one in requirements if one.marker and one.marker.evaluate({"extra": extra})
    )


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
