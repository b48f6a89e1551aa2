"""What workers do around the models that they evaluate."""

import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from moray.evaluate.execution import EvaluationJob, Execution, of_each_model
from moray.workers.entry import Worker


def _faults_of_batches(folder: Path) -> list[int]:
    """Page faults of each of twelve equal batches of 32 MB."""

    def batch() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**23)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    job = EvaluationJob({"tuned": folder}, (), Execution(folder, 1, "key", "fp32", 1))
    worker = Worker(0, 1, torch.device("cpu"))
    model: Any = None
    # glibc keeps a few small remainders before it gives a block of this size again.
    faults = of_each_model(lambda _: [batch() for _ in range(12)], job, worker, lambda *_: model)
    return faults["tuned"]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_a_batch_takes_memory_that_earlier_ones_have_freed(tmp_path: Path) -> None:
    # In another process, because the setting holds for all of it.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        first, *_, last = process.submit(_faults_of_batches, tmp_path).result()
    assert last < first / 10
