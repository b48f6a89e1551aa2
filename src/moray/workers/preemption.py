"""Notices that nodes are about to be preempted, such as spot instances."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from moray.background import in_thread

_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Notice:
    """That nodes with workers are about to be preempted.

    Attributes:
        nodes: their addresses.
        deadline: of the first of them, in seconds since the epoch; None if nobody knows.
    """

    nodes: tuple[str, ...]
    deadline: float | None


class PreemptedError(Exception):
    """All workers raise it, once they have saved, to be started again on other nodes.

    It doesn't count as a failure.
    """


def no_notice() -> Notice | None:
    """For workers whose nodes aren't preempted."""
    return None


@contextmanager
def notices_of_ray() -> Iterator[Callable[[], Notice | None]]:
    """During the body, which all workers of Ray Train enter, ask Ray for notices.

    Yields:
        A function that returns the newest notice, without waiting.
    """
    import ray
    import ray.train

    newest = deque[Notice | None]([None], maxlen=1)
    end = threading.Event()

    def follow() -> None:
        known = None
        while not end.wait(_POLL_SECONDS):
            info = ray.train.get_preemption_info()
            if info and info != known:
                known, leaving = info, info.preempted_node_ids
                nodes = (node for node in ray.nodes() if node["NodeID"] in leaving)
                newest.append(
                    Notice(
                        nodes=tuple(sorted(node["NodeManagerAddress"] for node in nodes)),
                        deadline=info.deadline_ms and info.deadline_ms / 1000,
                    )
                )

    # Not joined: asking waits for the other workers, some of which may have ended. An error, such
    # as at the end of Ray, ends the thread; Ray Train then starts the workers again at the
    # deadline.
    in_thread(follow)
    try:
        yield lambda: newest[-1]
    finally:
        end.set()
