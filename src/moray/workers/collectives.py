"""What workers send each other, whatever the strategy; with one process, nothing."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import Tensor

from moray.errors import UserError

Value = TypeVar("Value")


def sum_over_workers(value: Tensor) -> Tensor:
    """The sum of all workers' values, in place."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def together(make: Callable[[], Value], group: dist.ProcessGroup | None = None) -> Value:
    """What `make` gives on each worker, once it has on all of them.

    Args:
        make: called on each worker.
        group: of the workers; the default one unless given.

    Raises:
        UserError: on all workers, if it did on any: else the others would wait for ever.
    """
    value: list[Value] = []
    fault: tuple[str, ...] | None = None
    try:
        value = [make()]
    except UserError as error:
        fault = error.args
    if fault := next(filter(None, gathered(fault, group)), None):
        raise UserError(*fault)
    return value[0]


def gathered(value: Value, group: dist.ProcessGroup | None = None) -> list[Value]:
    """Each worker's value, by rank, on all of them."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group)
    return values


def from_any_worker(make: Callable[[], Value | None]) -> Value | None:
    """What `make` gives on the first worker where it isn't None, on all of them.

    Raises:
        UserError: on all workers, if it did on any.
    """
    values = gathered(together(make))
    return next((value for value in values if value is not None), None)


def from_first_worker(make: Callable[[], Value]) -> Value:
    """What `make` gives on the first worker, on all of them.

    Raises:
        UserError: on all workers, if it did on the first.
    """
    if not dist.is_initialized():
        return make()
    first = dist.get_rank() == 0
    content = [together(lambda: make() if first else None)]
    dist.broadcast_object_list(content)
    return cast(Value, content[0])
