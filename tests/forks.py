"""Processes that have all modules already, which a new Python takes seconds to import."""

import multiprocessing
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.spawn import start_processes

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["moray.train.loop"])


def run_forks(function: Callable[..., None], arguments: tuple[Any, ...], number: int) -> None:
    """Call a function with its rank and these arguments in so many processes; raises as they do."""
    start_processes(function, arguments, nprocs=number, start_method="forkserver")  # type: ignore[no-untyped-call]
