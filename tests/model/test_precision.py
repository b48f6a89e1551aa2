"""The arithmetic of the forward pass."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forks import run_forks

from moray.model import precision as module
from moray.model.precision import agreed, autocast, resolve

CPU = torch.device("cpu")


def answering(answer: str) -> Callable[[str, torch.device], str]:
    return lambda precision, device: answer


def be_one_of_two(rank: int, folder: Path) -> None:
    """Write what both agree on where each computes in bf16, the first one, and neither."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    precisions = []
    for with_bf16 in ({0, 1}, {0}, set[int]()):
        module.resolve = answering("bf16" if rank in with_bf16 else "fp32")  # type: ignore[assignment]
        precisions.append(agreed("auto", CPU))
    (folder / str(rank)).write_text(" ".join(precisions))
    dist.destroy_process_group()


@pytest.mark.long
def test_workers_of_unequal_machines_compute_in_what_all_can(tmp_path: Path) -> None:
    run_forks(be_one_of_two, (tmp_path,), 2)
    assert {(tmp_path / rank).read_text() for rank in "01"} == {"bf16 fp32 fp32"}


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_named_precision_is_taken(precision: str) -> None:
    assert resolve(precision, CPU) == precision


def test_auto_is_what_the_processor_computes_in() -> None:
    with open("/proc/cpuinfo") as file:
        flags = file.read()
    has_bf16 = "avx512_bf16" in flags or "amx_bf16" in flags
    assert resolve("auto", CPU) == ("bf16" if has_bf16 else "fp32")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_matrix_products_are_in_the_precision_and_weights_are_not(
    precision: str, dtype: torch.dtype
) -> None:
    linear = torch.nn.Linear(2, 2)
    with autocast(precision, CPU):
        assert linear(torch.ones(1, 2)).dtype == dtype
    assert linear.weight.dtype == torch.float32
