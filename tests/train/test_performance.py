"""Speeds, by a clock of the test's own; and the garbage collector around the loop."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from moray.train.performance import Stopwatch, manual_gc, peak_flops
from moray.workers.entry import Worker

Pass = Callable[[float], None]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Lets seconds pass."""
    now = [1000.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_speed_is_of_the_steps_and_not_of_what_lies_between(wait: Pass, alone: Worker) -> None:
    stopwatch = Stopwatch(alone, "tokens", step_units=600, step_flops=1.2e12, first_step=5)
    wait(6)
    stopwatch.stop(8)
    wait(1000)
    stopwatch.start(8)
    wait(4)
    stopwatch.stop(10)
    assert stopwatch.speed() == {
        "tokens_per_second": pytest.approx(5 * 600 / 10),
        "step_seconds": pytest.approx(2.0),
        "tflops": pytest.approx(300 * 2e9 / 1e12),
    }


def test_each_answer_is_of_the_steps_since_the_last_one(wait: Pass, alone: Worker) -> None:
    stopwatch = Stopwatch(alone, "tokens", step_units=100, step_flops=100.0, first_step=0)
    wait(10)
    stopwatch.stop(10)
    assert stopwatch.speed()["step_seconds"] == pytest.approx(1.0)
    stopwatch.start(10)
    wait(1)
    stopwatch.stop(12)
    assert stopwatch.speed()["step_seconds"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 2080", None),
    ],
)
def test_the_peak_of_a_gpu_is_known_by_its_name(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda", 0)) == peak


def test_a_cpu_has_no_peak_that_is_known() -> None:
    assert peak_flops(torch.device("cpu")) is None


@pytest.mark.parametrize("workers", [1, 4])
def test_the_share_of_the_peak_is_of_all_devices(
    workers: int, wait: Pass, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moray.train.performance.peak_flops", lambda device: 50e12)
    worker = Worker(0, workers, torch.device("cpu"))
    stopwatch = Stopwatch(worker, "tokens", step_units=1000, step_flops=1e13, first_step=0)
    wait(2)
    stopwatch.stop(2)
    assert stopwatch.speed()["mfu"] == pytest.approx(1000 * 1e10 / (workers * 50e12))


class Circle:
    """Held by itself alone."""

    def __init__(self) -> None:
        self.own = self


def dropped() -> weakref.ref[Circle]:
    return weakref.ref(Circle())


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """Whatever a test does, those after it have a collector."""
    yield
    gc.enable()
    gc.unfreeze()


def test_in_the_body_nothing_is_collected_until_asked() -> None:
    with manual_gc() as collect:
        assert not gc.isenabled()
        garbage = dropped()
        filled = [[number] for number in range(50_000)]
        assert len(filled) == 50_000
        assert garbage() is not None
        collect()
        assert garbage() is None


def test_what_was_there_before_or_when_first_asked_is_not_looked_at_again() -> None:
    with manual_gc() as collect:
        before = gc.get_freeze_count()
        assert before > 0
        kept = [[number] for number in range(50_000)]
        collect()
        assert gc.get_freeze_count() >= before + len(kept)
        first = gc.get_freeze_count()
        later = dropped()
        collect()
        assert later() is None
        assert gc.get_freeze_count() <= first
    assert gc.get_freeze_count() == 0


def test_after_the_body_the_collector_is_as_before() -> None:
    with manual_gc():
        pass
    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt), manual_gc():
        raise KeyboardInterrupt
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
