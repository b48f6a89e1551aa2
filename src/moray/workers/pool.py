"""Work on many items: in threads of this process, or in tasks on the nodes of a cluster."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar

from moray import machine
from moray.config.schema.sections import Ray
from moray.console import say
from moray.workers.cluster import connect_for_tasks

Item = TypeVar("Item")
Result = TypeVar("Result")

# While the result of one item is on its way, a core has another one.
_ITEMS_PER_CPU = 2
# Processes of tasks start in ten seconds, and an item takes some.
_SECONDS_BEFORE_LINE = 60.0


@dataclass(frozen=True)
class Work:
    """How a kind of work uses cores.

    Attributes:
        threads: number of threads of a process.
        useful_threads: how many don't mostly wait for Python's lock.
        bytes_worth_ray: how much is worth the ten seconds in which Ray starts.
    """

    threads: int
    useful_threads: int
    bytes_worth_ray: int


# Python packs and writes some items while a tokenizer's threads work on others. Each of these
# threads takes one document, so with long documents a single item wouldn't keep all of them busy.
# Python's lock is held for a fifth of the time. A thread tokenises 2 MB in a second.
TOKENIZE = Work(min(8, max(2, os.cpu_count() or 1)), 4, 256 * 2**20)
# Files are read and written while a thread parses what was read, at 30 MB in a second.
PARSE = Work(2, 1, 2**30)


class Pool(Protocol):
    """What calls functions on several cores."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield a function's results in the order of the items, a few in memory at a time.

        Raises:
            Exception: what the function raises.
        """


@contextmanager
def open_pool(execution: Mapping[str, Any] | None, work: Work, num_bytes: int) -> Iterator[Pool]:
    """The cores for work on so many bytes: the cluster of a run, or those of this machine.

    Ray is used if it saves more time than it takes to start, and the run's launcher is Ray.

    Args:
        execution: see `layout.store_execution`; None for threads.

    Raises:
        UserError: if the cluster can't be used.
    """
    if execution is None or num_bytes < work.bytes_worth_ray:
        yield Threads(work.threads)
        return
    settings, by_torchrun = Ray(**execution["ray"]), execution["launcher"] == "torchrun"
    cores = min(machine.cores(), execution["cores"] or machine.cores())
    if by_torchrun or (settings.address == "local" and cores <= work.useful_threads):
        yield Threads(work.threads)
        return
    with connect_for_tasks(settings, f"runs.{execution['run']}.ray", cores) as num_cpus:
        yield RayTasks(num_cpus, settings.max_failures)


class Threads:
    """Threads of this process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        with ThreadPoolExecutor(self._number) as threads:
            results = (threads.submit(function, item).result for item in items)
            yield from _in_order(results, self._number)


class RayTasks:
    """Tasks of Ray, one for each CPU; connect to it first. Those of a lost node are repeated."""

    def __init__(self, num_cpus: int, max_failures: int) -> None:
        self._at_once = _ITEMS_PER_CPU * max(1, num_cpus)
        self._max_failures = max_failures

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        import ray

        # Once for all tasks: a tokenizer has some megabytes.
        stored = ray.put(function)
        task = ray.remote(num_cpus=1, max_retries=self._max_failures)(_call)
        results = (partial(_get, task.remote([stored], item)) for item in items)
        with _announce_wait() as first_is_there:
            for result in _in_order(results, self._at_once):
                first_is_there()
                yield result


def _in_order(results: Iterable[Callable[[], Result]], at_once: int) -> Iterator[Result]:
    """Wait for results in their order; so many are begun before the first is waited for."""
    waiting: deque[Callable[[], Result]] = deque()
    for result in results:
        waiting.append(result)
        if len(waiting) == at_once:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()


@contextmanager
def _announce_wait() -> Iterator[Callable[[], None]]:
    """Say during the body that the first result takes long, unless the function is called first."""

    def announce() -> None:
        say(
            f"no task has ended in {_SECONDS_BEFORE_LINE:g} s: all CPUs of the cluster may be in "
            "use; waiting for them"
        )

    timer = threading.Timer(_SECONDS_BEFORE_LINE, announce)
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _call(stored: list[Any], item: Item) -> Any:
    # Ray starts a process for each core.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    (function,) = stored
    return _function(function)(item)


@lru_cache(maxsize=1)
def _function(stored: Any) -> Callable[[Any], Any]:
    """A function of the object store; each process has it for its next task."""
    import ray

    function: Callable[[Any], Any] = ray.get(stored)
    return function


def _get(result: Any) -> Any:
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(result)
    except RayTaskError as error:
        raise error.cause from error
