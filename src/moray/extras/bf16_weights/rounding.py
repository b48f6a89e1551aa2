"""Steps of weights in bf16, computed in fp32 and rounded stochastically: up with a probability that
is the share of the way to the next number.

A step is often smaller than half of the way, so rounding to the nearest would lose it. Sources:
Gupta et al., "Deep Learning with Limited Numerical Precision", 2015; Zamirai et al., "Revisiting
BFloat16 Training", 2020.

Random bits are read from a table, from a place that is drawn for each chunk of a tensor. Source:
Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning", 2017,
section 2.1. Seed, step, and a tensor's name decide the bits of its elements, whatever the number of
workers, and however they share it.
"""

import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from moray.config.schema.train import Train
from moray.errors import UserError
from moray.train.adamw import local_shard, step_shard
from moray.train.optimizer import trained_parameters
from moray.train.statistics import statistics_of

# Elements of a tensor that are in fp32 at a time, and whose random bits are drawn together. Part of
# what the bits are.
CHUNK = 2**22


def check_weights(model: PreTrainedModel, settings: Train) -> None:
    """Check that a model can be trained with weights in bf16.

    Raises:
        UserError: if it can't.
    """
    kind = model.config.model_type
    if statistics_of(model):
        raise UserError(
            "train.weights",
            f"bf16 can't be used with a {kind} model, because statistics of BatchNorm need fp32",
            "set it to fp32",
        )
    kept = [
        name for name, value in trained_parameters(model).items() if value.dtype != torch.bfloat16
    ]
    if kept and settings.strategy == "fsdp2":
        raise UserError(
            "train.strategy",
            f"fsdp2 can't be used with train.weights: bf16 and a {kind} model, which keeps "
            f"{kept[0]} in fp32",
            "set it to ddp",
        )


@cache
def _table(device: torch.device) -> Tensor:
    """Numbers of 16 random bits, int32; chunks begin in the first half."""
    bits = np.random.PCG64(0).random_raw(2 * CHUNK // 4).view(np.uint16)
    return torch.from_numpy(bits.astype(np.int32)).to(device)


def round_stochastically(weights: Tensor, values: Tensor, key: Sequence[int], first: int) -> None:
    """Set weights to values; which way each is rounded is a function of `key` and its index.

    Args:
        weights: bf16, shape (elements,).
        values: fp32, contiguous, of the same shape; overwritten.
        key: whole numbers, at least 0.
        first: index of the first element in its tensor.
    """
    # Adding to the bits of a GPU's NaN would make a number of it.
    values.nan_to_num_(torch.nan, torch.inf, -torch.inf)
    bits, table = values.view(torch.int32), _table(values.device)
    start = 0
    while start < len(bits):
        chunk, inside = divmod(first + start, CHUNK)
        size = min(CHUNK - inside, len(bits) - start)
        draw = int(np.random.SeedSequence([*key, chunk]).generate_state(1)[0])
        begin = inside + draw % CHUNK
        # Carries into the upper half of an fp32 number, which is one in bf16.
        bits[start : start + size].add_(table[begin : begin + size])
        start += size
    weights.copy_(values.view(torch.bfloat16)[1::2])


@torch.no_grad()
def step_in_fp32(
    parameters: Mapping[str, nn.Parameter], made: torch.optim.Optimizer, scale: Tensor, seed: int
) -> None:
    """Take a step of AdamW and clear the gradients; at no time is a whole tensor in fp32.

    Args:
        parameters: trained parameters, by name. Those in fp32 aren't rounded.
        scale: what their gradients are multiplied by, shape ().
    """
    names = {parameter: name for name, parameter in parameters.items()}
    for group in made.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = made.state[parameter]
                state["step"] += 1
                key = (seed, int(state["step"]), zlib.crc32(names[parameter].encode()))
                _step(parameter, state, group, scale, key)
                # The next one's fp32 numbers can have its place.
                parameter.grad = None


def _step(
    parameter: nn.Parameter,
    state: Mapping[str, Any],
    group: Mapping[str, Any],
    scale: Tensor,
    key: Sequence[int],
) -> None:
    assert parameter.grad is not None
    weights, gradients, mean, square = (
        local_shard(value).view(-1) if isinstance(value, Tensor) else value
        for value in (
            parameter,
            parameter.grad.contiguous(),
            state["exp_avg"],
            state["exp_avg_sq"],
        )
    )
    first = _first(parameter)
    for start in range(0, len(weights), CHUNK):
        part = slice(start, start + CHUNK)
        exact, gradient = weights[part].float(), gradients[part].float() * scale
        step_shard(exact, gradient, mean[part], square[part], int(state["step"]), group)
        if exact.dtype != weights.dtype:
            round_stochastically(weights[part], exact, key, first + start)


def _first(parameter: Tensor) -> int:
    """The index of this worker's first element, in a tensor whose rows are sharded as by FSDP2."""
    if not isinstance(parameter, DTensor):
        return 0
    # With copies of the model, its shards are along the last dimension.
    mesh, rows = parameter.device_mesh, parameter.shape[0]
    before = -(-rows // mesh.size(mesh.ndim - 1)) * mesh.get_local_rank(mesh.ndim - 1)
    return min(before, rows) * (parameter.numel() // rows)


def norm_of(parameters: Mapping[str, nn.Parameter]) -> Tensor:
    """The norm of all gradients in fp32, shape ()."""
    gradients = [value.grad for value in parameters.values() if value.grad is not None]
    norms = [torch.linalg.vector_norm(value, dtype=torch.float32) for value in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
