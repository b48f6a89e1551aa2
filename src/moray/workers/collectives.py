"""Collectives of the workers, for all strategies; with one process, no communication."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import Tensor

from moray.errors import UserError

Value = TypeVar("Value")


def sum_over_workers(value: Tensor) -> Tensor:
    """Sum a tensor over all workers, in place."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def together(make: Callable[[], Value], group: dist.ProcessGroup | None = None) -> Value:
    """Call `make` on all workers; returns this worker's result once all have succeeded.

    Raises:
        UserError: on all workers, if `make` raised it on any of them. Otherwise, the others would
            wait forever.
    """
    value: list[Value] = []
    fault: tuple[str, ...] | None = None
    try:
        value = [make()]
    except UserError as error:
        fault = error.args
    if fault := next(filter(None, gather(fault, group)), None):
        raise UserError(*fault)
    return value[0]


def gather(value: Value, group: dist.ProcessGroup | None = None) -> list[Value]:
    """Gather the values of all workers on each of them, by rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group)
    return values


def from_any_worker(make: Callable[[], Value | None]) -> Value | None:
    """Call `make` on all workers; returns the first result that isn't None, on all of them.

    Raises:
        UserError: on all workers, if `make` raised it on any of them.
    """
    values = gather(together(make))
    return next((value for value in values if value is not None), None)


def from_first_worker(make: Callable[[], Value]) -> Value:
    """Call `make` on the first worker; returns its result on all of them.

    Raises:
        UserError: on all workers, if `make` raised it on the first.
    """
    if not dist.is_initialized():
        return make()
    first = dist.get_rank() == 0
    content = [together(lambda: make() if first else None)]
    dist.broadcast_object_list(content)
    return cast(Value, content[0])
