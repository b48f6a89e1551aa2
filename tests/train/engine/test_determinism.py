"""What a run computes with that has to give the same bytes."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from checkpoints import tensors_of

from moray.model.compiler import compiler_options
from moray.storage.paths import folder_of, path_of
from moray.train.engine.determinism import compute_deterministically
from moray.train.loop import train
from moray.workers.worker import Worker

KEY = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(KEY, "")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    yield
    torch.use_deterministic_algorithms(False)


def is_deterministic() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    algorithms = torch.are_deterministic_algorithms_enabled()
    compiler = compiler_options()["deterministic"]
    settings = (algorithms, cudnn.deterministic, not cudnn.benchmark, compiler)
    return (*settings, os.environ[KEY] == ":4096:8")


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize(("kind", "expected"), [("cpu", False), ("cuda", True)])
def test_a_gpu_is_given_deterministic_algorithms_and_a_cpu_needs_none(
    kind: str, expected: bool
) -> None:
    compute_deterministically(torch.device(kind))
    assert is_deterministic() == (expected,) * 5


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("asked", [True, False])
def test_a_run_computes_so_if_the_config_asks_for_it(
    asked: bool, make_job: Any, alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[torch.device] = []
    monkeypatch.setattr("moray.train.loop.compute_deterministically", devices.append)
    train(make_job(deterministic=asked, max_steps=1), alone)
    assert devices == [alone.device] * asked


@pytest.mark.gpu
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
def test_on_a_gpu_two_runs_end_with_the_same_bytes(
    attention: str, make_job: Any, alone: Worker
) -> None:
    keys = {"deterministic": True, "attention": attention, "precision": "bf16", "compile": False}
    worker = replace(alone, device=torch.device("cuda", 0))
    ends = []
    for name in ("first", "second"):
        job = make_job(name, **keys)
        train(job, worker)
        ends.append(tensors_of(path_of(folder_of(job.work), 8)))
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
