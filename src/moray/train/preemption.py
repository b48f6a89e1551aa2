"""What a training does once nodes of its workers are about to be preempted.

It saves at once, because a deadline may not be kept, and goes on, because the node may be there for
long. Shortly before the deadline it saves again and leaves, so that no step is lost.
"""

import time
from collections import deque
from collections.abc import Callable

from moray.train.supervision import Request
from moray.workers.preemption import Notice

# Beside the longest of the last steps: until all workers have ended, for clocks that differ, and
# for nodes that go a little early.
_SPARE_SECONDS = 5.0
# Steps with an evaluation or a checkpoint are usually among so many.
_RECENT_STEPS = 100


class Notices:
    """Requests that follow from the notices of a worker; it is asked at the start of each step."""

    def __init__(self, newest: Callable[[], Notice | None]) -> None:
        """Ask for the newest notice with this function."""
        self._newest = newest
        self._now: Notice | None = None
        self._saved: Notice | None = None
        self._began: float | None = None
        self._seconds = deque[float](maxlen=_RECENT_STEPS)

    def pending(self) -> Request:
        """`SAVE` once for each notice; `LEAVE` if there is no time for another step after this."""
        now = time.monotonic()
        if self._began is not None:
            self._seconds.append(now - self._began)
        self._began, self._now = now, self._newest()
        if self._now is None:
            return Request.NONE
        if self._now != self._saved:
            return Request.SAVE
        left = 0.0 if self._now.deadline is None else self._now.deadline - time.time()
        # This step, which then saves too, and a next one.
        needed = 2 * max(self._seconds, default=0.0) + _SPARE_SECONDS
        return Request.LEAVE if left < needed else Request.NONE

    def done(self, request: Request) -> None:
        """A checkpoint is saved."""
        self._saved = self._now

    def describe(self, step: int) -> str | None:
        """A line about a new notice for which a step was saved; call it before `done`."""
        if self._now is None or self._now == self._saved:
            return None
        deadline = self._now.deadline
        when = f" at {time.strftime('%H:%M:%S', time.localtime(deadline))}" if deadline else ""
        return f"{self._nodes()} will be preempted{when}: saved step {step}"

    def describe_leaving(self, step: int) -> str:
        """A line about workers that leave once a step is saved."""
        return f"saved step {step}, leaving {self._nodes()}: the workers start again elsewhere"

    def _nodes(self) -> str:
        nodes = self._now.nodes if self._now else ()
        return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(nodes)}"
