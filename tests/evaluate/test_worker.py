"""Batches of which some are on disk, on any number of workers."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from resumed import interrupted_after

from moray.errors import UserError
from moray.evaluate.batches import Arrays, Batch, BatchResults
from moray.evaluate.worker import EvaluationJob, batch_results, files_of_batches
from moray.workers.entry import Worker

PARTS = {"a": np.arange(10), "b": np.arange(20, 27), "c": np.arange(0)}
ALL = {
    Batch(model, part, number)
    for model in ("base", "tuned")
    for part, batches in (("a", 4), ("b", 3))
    for number in range(batches)
}


class Run:
    """What workers compute with numbers for models, and which of these they load."""

    def __init__(self, folder: Path, batches: Path | None) -> None:
        models = {"base": Path("3"), "tuned": Path("7")}
        self.job = EvaluationJob(folder, 3, "key", "fp32", None, models, batches=batches)
        self.loaded: list[int] = []
        self.computed: list[list[int]] = []

    def load(self, folder: Path, *_: object) -> Any:
        self.loaded.append(int(folder.name))
        return self.loaded[-1]

    def compute(
        self, model: Any, part: str, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[Arrays]:
        for batch in batches:
            self.computed.append(batch.tolist())
            yield {part: batch * model}

    def work(self, rank: int, world_size: int) -> dict[Batch, Any]:
        worker = Worker(rank, world_size, torch.device("cpu"))
        results = batch_results(self.compute, PARTS, self.job, worker, self.load)
        return {
            batch: {name: a.tolist() for name, a in arrays.items()} for batch, arrays in results
        }

    def work_all(self, world_size: int) -> dict[Batch, Any]:
        whole: dict[Batch, Any] = {}
        for rank in range(world_size):
            some = self.work(rank, world_size)
            assert not some.keys() & whole.keys()
            whole |= some
        return whole


def expected() -> dict[Batch, Any]:
    factors, whole = {"base": 3, "tuned": 7}, {}
    for batch in ALL:
        numbers = PARTS[batch.part][3 * batch.number :][:3] * factors[batch.model]
        whole[batch] = {batch.part: numbers.tolist()}
    return whole


@pytest.mark.parametrize("world_size", [1, 2, 3, 20])
def test_each_batch_is_computed_by_one_worker(world_size: int, tmp_path: Path) -> None:
    run = Run(tmp_path, tmp_path / "batches")
    assert run.work_all(world_size) == expected()
    assert len(run.computed) == len(ALL)
    done = sum(file.stat().st_size for file in tmp_path.glob("done-*"))
    assert done == len(ALL)


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_other_workers_compute_the_batches_that_are_left(
    before: int, after: int, count: int, tmp_path: Path
) -> None:
    batches = tmp_path / "batches"
    for rank in range(before):
        with interrupted_after(count):
            Run(tmp_path, batches).work(rank, before)
    there = len(BatchResults(batches))
    assert there == before * count
    run = Run(tmp_path, batches)
    assert run.work_all(after) == expected()
    assert len(run.computed) == len(ALL) - there
    assert len(BatchResults(batches)) == len(ALL)


def test_a_model_is_loaded_for_batches_that_are_left(tmp_path: Path) -> None:
    with interrupted_after(7):
        Run(tmp_path, tmp_path / "batches").work(0, 1)
    run = Run(tmp_path, tmp_path / "batches")
    assert run.work(0, 1) == expected()
    assert run.loaded == [7]
    again = Run(tmp_path, tmp_path / "batches")
    assert again.work(0, 1) == expected()
    assert (again.loaded, again.computed) == ([], [])


def test_a_damaged_result_is_computed_again(tmp_path: Path) -> None:
    batches = tmp_path / "batches"
    Run(tmp_path, batches).work_all(1)
    (file,) = batches.iterdir()
    content = file.read_bytes()
    # The last byte is of the last batch's numbers.
    file.write_bytes(content[:-1] + b"?")
    run = Run(tmp_path, batches)
    assert run.work_all(2) == expected()
    assert run.computed == [[26]]


def test_without_a_lasting_folder_results_are_in_the_job_s(tmp_path: Path) -> None:
    run = Run(tmp_path, None)
    assert run.work_all(2) == expected()
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith("done-")}
    assert names == {name for rank in range(2) for name in files_of_batches(rank)}
    results = BatchResults(tmp_path)
    assert len(results) == len(ALL)
    # A worker that is started again begins anew.
    assert run.work_all(2) == expected()
    assert len(run.computed) == 2 * len(ALL)


def test_out_of_memory_names_the_key_to_change(tmp_path: Path) -> None:
    run = Run(tmp_path, tmp_path / "batches")

    def compute(*_: object) -> Iterator[Arrays]:
        yield {"a": np.zeros(1)}
        raise MemoryError

    results = batch_results(compute, PARTS, run.job, Worker(0, 1, torch.device("cpu")), run.load)
    with pytest.raises(UserError, match="key: the memory of worker 0"):
        list(results)
    assert len(BatchResults(tmp_path / "batches")) == 1
