"""End a run on a cluster that has been without workers for too long.

Ray Train starts lost workers again and again, for ever if a node doesn't come back. It doesn't say
whether workers are there, so they report to an actor next to the driver, which the driver asks.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any, TypeVar

from moray.background import in_thread, repeated
from moray.console import say

Result = TypeVar("Result")

_REPORT_SECONDS = 2.0
_POLL_SECONDS = 1.0
# Shorter absences are those between two attempts.
_SECONDS_BEFORE_LINE = 10.0


class NoWorkersError(Exception):
    """There were no workers for as long as they are waited for."""


class _Presence:
    """When a worker last reported. A Ray actor."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def report(self) -> None:
        self._last = time.monotonic()

    def absence(self) -> float:
        return time.monotonic() - self._last


class Presence:
    """Whether workers are there, on the side of the driver and, pickled, on that of a worker."""

    def __init__(self) -> None:
        """Start the actor on this node; connect to Ray first."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = ray.get_runtime_context().get_node_id()
        self._actor: Any = (
            ray.remote(num_cpus=0)(_Presence)
            .options(scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False))
            .remote()
        )

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Report this worker's presence during the body."""
        self._actor.report.remote()
        with repeated(self._actor.report.remote, _REPORT_SECONDS):
            yield

    def watched(
        self, function: Callable[[], Result], limit: float, lack: Callable[[], str | None]
    ) -> Result:
        """Call a function that waits for workers, as long as there are some.

        Args:
            function: called in a thread, which is left behind if there are none.
            limit: seconds without a worker after which it isn't waited for any more.
            lack: why workers can't start, for a line to the user; None if they can.

        Raises:
            NoWorkersError: if there were none for so long.
            Exception: what the function raised.
        """
        import ray

        called = in_thread(function)
        told, before = _told(limit, lack), 0.0
        while wait([called], _POLL_SECONDS).not_done:
            absence = ray.get(self._actor.absence.remote())
            if absence > limit:
                raise NoWorkersError(lack() or "the cluster has room for them, but none started")
            if absence < before:
                told = False
            if not told and absence > _SECONDS_BEFORE_LINE:
                told = _told(limit, lack)
            before = absence
        return called.result()


def _told(limit: float, lack: Callable[[], str | None]) -> bool:
    if lacking := lack():
        say(f"waiting up to {limit:g} s for {lacking}")
    return lacking is not None
