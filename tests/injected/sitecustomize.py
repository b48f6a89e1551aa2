"""Faults and records put into the processes of a real workflow, from outside of the package.

Python imports this module at its start where its folder is on PYTHONPATH, which Snakemake, Ray and
torchrun hand down. What it does is in the variable INJECTED, as JSON: `ledger`, a file that gets
the rows of each step; `hang` or `memory`, what befalls the worker of rank 1, in each of its
attempts: at a step, it does nothing any more; or it gets only so many bytes more than it has.
"""

import hashlib
import importlib.util
import json
import os
import resource
import sys
import threading
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_LOOP = "moray.train.loop"


class _OnImport(MetaPathFinder):
    """Changes the module of the training loop once it is imported, if it ever is."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _LOOP:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            _change(module, json.loads(os.environ["INJECTED"]))

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


def _change(loop: Any, wanted: dict[str, Any]) -> None:
    gradients, seed, place = loop.gradients, loop._seed_dropout, (0, 0)

    def seen(seed_of_run: int, done: int, rank: int) -> None:
        nonlocal place
        place = (rank, done)
        if rank == 1 and wanted.get("hang") == done:
            threading.Event().wait()
        if rank == 1 and done == 0 and "memory" in wanted:
            limit_memory(wanted["memory"])
            with Path(wanted["ledger"]).with_suffix(".capped").open("a") as file:
                file.write("capped\n")
        seed(seed_of_run, done, rank)

    def recorded(strategy: Any, batches: list[Any], *arguments: Any) -> Any:
        result = gradients(strategy, batches, *arguments)
        if "ledger" in wanted:
            rows = [row for batch in batches for row in _inputs(batch) if row.any()]
            digests = [hashlib.sha256(row.numpy().tobytes()).hexdigest()[:16] for row in rows]
            with Path(wanted["ledger"]).open("a") as file:
                file.write(json.dumps([os.getpid(), *place, digests]) + "\n")
        return result

    loop._seed_dropout, loop.gradients = seen, recorded


def _inputs(batch: Any) -> Any:
    # Answers that are good or bad are beside those of other documents.
    rows = getattr(batch, "own", batch)
    names = ("pixels", "tokens", "input_ids")
    return next(getattr(rows, name) for name in names if hasattr(rows, name))


def limit_memory(more: int) -> None:
    """Let this process take only so many bytes more than it has."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, resource.RLIM_INFINITY))


if "INJECTED" in os.environ:
    sys.meta_path.insert(0, _OnImport())
