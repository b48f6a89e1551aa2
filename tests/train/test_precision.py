"""The arithmetic of the forward pass."""

import pytest
import torch

from moray.train.precision import autocast, resolve

CPU = torch.device("cpu")


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
