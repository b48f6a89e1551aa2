"""Results of batches that a process has left on disk."""

from pathlib import Path

import numpy as np
import pytest

from moray.evaluate import batches as module
from moray.evaluate.batches import (
    Arrays,
    Batch,
    BatchResults,
    BatchWriter,
    batches_folder,
    bytes_of_batches,
    remove_batches,
)
from moray.rows.store import Rows

ROWS: Rows = np.array([(1, [2.5, -1]), (7, [0, 3])], np.dtype([("a", "<u2"), ("b", "<f4", (2,))]))
RESULTS: dict[Batch, Arrays] = {
    Batch("base", "0", 0): {"nll": np.array([0.1, 1 / 3]), "tokens": np.array([3, 5])},
    Batch("base", "0", 3): {"nll": np.zeros(0), "tokens": np.zeros(0, np.int64)},
    Batch("base", "é\n", 0): {"answers": np.arange(6, dtype=np.float32).reshape(3, 2).T},
    Batch("tuned", "0", 0): {"rows": ROWS.view("u1")},
}


def write(file: Path, results: dict[Batch, Arrays] = RESULTS) -> None:
    with BatchWriter(file) as writer:
        for batch, arrays in results.items():
            writer.add(batch, arrays)


def equal(found: Arrays | None, written: Arrays) -> bool:
    return (
        found is not None
        and [*found] == [*written]
        and all(found[name].dtype == written[name].dtype for name in found)
        and all(np.array_equal(found[name], written[name]) for name in found)
    )


def test_results_are_those_of_all_files(tmp_path: Path) -> None:
    first, second = dict([*RESULTS.items()][:1]), dict([*RESULTS.items()][1:])
    write(tmp_path / "new/x.batches", first)
    write(tmp_path / "new/y.batches", second)
    results = BatchResults(tmp_path / "new")
    assert len(results) == len(RESULTS)
    assert all(equal(results.read(batch), arrays) for batch, arrays in RESULTS.items())
    assert results.read(Batch("tuned", "0", 1)) is None


def test_without_a_result_there_is_nothing(tmp_path: Path) -> None:
    write(tmp_path / "new/x.batches", {})
    assert not [*tmp_path.iterdir()]
    assert len(BatchResults(tmp_path / "new")) == len(BatchResults(None)) == 0


def test_of_a_file_that_was_cut_the_results_before_that_count(tmp_path: Path) -> None:
    write(tmp_path / "whole/x.batches")
    content = (tmp_path / "whole/x.batches").read_bytes()
    counts = []
    for size in range(len(content) + 1):
        (tmp_path / "x.batches").write_bytes(content[:size])
        results = BatchResults(tmp_path)
        there = [batch for batch in RESULTS if results.read(batch) is not None]
        assert there == [*RESULTS][: len(results)]
        assert all(equal(results.read(batch), RESULTS[batch]) for batch in there)
        counts.append(len(results))
    assert counts == sorted(counts)
    assert {*counts} == {*range(len(RESULTS) + 1)}


def test_no_result_has_bytes_that_were_not_written(tmp_path: Path) -> None:
    write(tmp_path / "whole/x.batches")
    content = (tmp_path / "whole/x.batches").read_bytes()
    for place in range(len(content)):
        for flip in (1, 16, 255):
            damaged = bytearray(content)
            damaged[place] ^= flip
            (tmp_path / "x.batches").write_bytes(damaged)
            results = BatchResults(tmp_path)
            there = {batch: results.read(batch) for batch in RESULTS}
            intact = [batch for batch in RESULTS if equal(there[batch], RESULTS[batch])]
            assert len(intact) < len(RESULTS)
            assert all(there[batch] is None for batch in RESULTS if batch not in intact)


@pytest.mark.parametrize("content", [b"\0" * 300_000, b"00000000{}\n", b"\n\n"])
def test_what_was_never_a_result_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.batches").write_bytes(content)
    assert len(BatchResults(tmp_path)) == 0


def test_of_a_batch_that_is_there_twice_an_intact_result_counts(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write(tmp_path / f"{name}.batches")
    first = tmp_path / "x.batches"
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    results = BatchResults(tmp_path)
    assert len(results) == len(RESULTS)
    assert all(equal(results.read(batch), arrays) for batch, arrays in RESULTS.items())


@pytest.mark.parametrize(("seconds", "flushed"), [(0.0, True), (3600.0, False)])
def test_results_are_flushed_now_and_then(
    seconds: float, flushed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_FLUSHES", seconds)
    with BatchWriter(tmp_path / "x.batches") as writer:
        for number, (batch, arrays) in enumerate(RESULTS.items(), 1):
            writer.add(batch, arrays)
            assert len(BatchResults(tmp_path)) == (number if flushed else 0)


def test_seconds_are_those_that_workers_took_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    writers = [BatchWriter(tmp_path / f"{rank}.batches", num_workers=2) for rank in range(2)]
    for (batch, arrays), seconds in zip(RESULTS.items(), (4, 1, 3, 2), strict=True):
        now += seconds
        for writer in writers:
            writer.add(batch, arrays)
    for writer in writers:
        with writer:
            pass
    assert BatchResults(tmp_path).seconds == pytest.approx(10)


def test_results_of_another_key_are_removed_and_not_those_of_other_outputs(tmp_path: Path) -> None:
    output = tmp_path / "store"
    old, other, own = (
        batches_folder(folder, key)
        for folder, key in ((output, "aa"), (tmp_path / "store-2", "aa"), (output, "bb"))
    )
    for folder in (old, other):
        write(folder / "x.batches")
    assert bytes_of_batches(output) == (old / "x.batches").stat().st_size > 0
    assert batches_folder(output, "aa") == old
    assert {*tmp_path.iterdir()} == {old, other}
    assert batches_folder(output, "bb") == own
    assert {*tmp_path.iterdir()} == {other}
    write(own / "x.batches")
    remove_batches(output)
    assert {*tmp_path.iterdir()} == {other}
