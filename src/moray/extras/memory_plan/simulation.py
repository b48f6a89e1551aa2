"""What a forward and a backward pass hold in memory, found by running them on fake tensors.

Fake tensors have shapes and types, but no values, so a model of any size is run in seconds, as the
training runs it. What is alive is counted after each operation; what an operation needs inside
itself is not.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from moray.model.forward import autocast, blocks_of, decoder_of
from moray.train.task import Batch, LossModule

_CPU = torch.device("cpu")


class Kind(IntEnum):
    """What memory is held for: columns of what is counted."""

    CASTS = 0
    ACTIVATIONS = 1
    LOSS = 2
    WORKSPACE = 3
    GRADIENTS = 4


Bytes = NDArray[np.float64]
"""Bytes of each kind, last axis as in `Kind`."""


@dataclass(frozen=True)
class Pass:
    """What is held after each operation of a micro-batch, besides weights and optimizer state.

    Attributes:
        forward: of the decoder's forward pass, shape (operations, kinds).
        backward: of the backward pass, likewise.
    """

    forward: Bytes
    backward: Bytes


class WithoutValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has operations whose results PyTorch doesn't know without values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _KNOWN.get(func, func)(*args, **(kwargs or {}))


def _grouped_mm(left: Tensor, right: Tensor, offs: Tensor, *_: object, **__: object) -> Tensor:
    """A result of `torch.nn.functional.grouped_mm`, which PyTorch knows in bf16 alone.

    That of states, shape (tokens, inputs), and weights, shape (experts, inputs, outputs); or the
    weights' gradients, of two matrices.
    """
    experts = () if right.dim() == 3 else (len(offs),)
    return left.new_empty(*experts, left.shape[0], right.shape[-1])


def _bincount(values: Tensor, weights: None, minlength: int) -> Tensor:
    """The numbers of values that are all below `minlength`."""
    return values.new_empty(minlength)


_KNOWN = {
    torch.ops.aten._grouped_mm.default: _grouped_mm,
    torch.ops.aten.bincount.default: _bincount,
}


class _Ledger(WithoutValues):
    """Counts the memory of tensors that are made while it is active, until they are freed."""

    def __init__(self, module: nn.Module, batch: Batch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = Kind.ACTIVATIONS
        self._alive = np.zeros(len(Kind))
        self._held: dict[int, tuple[Kind, int]] = {}
        self._weights = {_key(weight) for weight in module.parameters()}
        inputs = [*module.buffers(), *_tensors(batch)]
        self._known = self._weights | {_key(tensor) for tensor in inputs}
        self.events: dict[Kind, list[Bytes]] = {kind: [] for kind in Kind}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.prim.device.default:
            # transformers asks for it a few times more in the first pass.
            return made
        kind = self.kind
        if func is torch.ops.aten._to_copy.default and _key(args[0]) in self._weights:
            kind = Kind.CASTS
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._add(tensor, kind)
        self.events[self.kind].append(self._alive.copy())
        return made

    def _add(self, tensor: Tensor, kind: Kind) -> None:
        key = _key(tensor)
        if key in self._known or key in self._held:
            return
        storage = tensor.untyped_storage()
        self._held[key] = kind, storage.nbytes()
        self._alive[kind] += storage.nbytes()
        weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        kind, size = self._held.pop(key)
        self._alive[kind] -= size

    def is_gradient(self, parameter: Tensor) -> None:
        """Count a parameter's gradient, which the backward pass has just finished, as one."""
        assert parameter.grad is not None
        key = _key(parameter.grad)
        kind, size = self._held[key]
        self._held[key] = Kind.GRADIENTS, size
        self._alive[kind] -= size
        self._alive[Kind.GRADIENTS] += size

    def counted(self, kind: Kind) -> Bytes:
        """What was alive after each operation while memory was counted as of a kind."""
        return np.array(self.events[kind])


def _tensors(batch: Batch) -> Iterator[Tensor]:
    """A batch's tensors, of which the first one has the tokens that the decoder is trained on."""
    for value in vars(batch).values():
        yield from _tensors(value) if isinstance(value, Batch) else [value]


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def on_fake_cpu(module: nn.Module, mode: FakeTensorMode) -> None:
    """Move a module from `meta` to fake tensors on the CPU, the only ones with a backward pass and
    autocast on every machine.
    """
    made: dict[int, Tensor] = {}
    with mode:
        for part in module.modules():
            for group in (part._parameters, part._buffers):
                for name, value in group.items():
                    if value is None:
                        continue
                    if id(value) not in made:
                        empty = torch.empty(value.shape, dtype=value.dtype, device=_CPU)
                        if isinstance(value, nn.Parameter):
                            empty = nn.Parameter(empty, value.requires_grad)
                        made[id(value)] = empty
                    group[name] = made[id(value)]  # type: ignore[assignment]


def simulate(module: LossModule, batch: Batch, precision: str, mode: FakeTensorMode) -> Pass:
    """Run a micro-batch forward and backward.

    Args:
        module: as `on_fake_cpu` leaves it.
        batch: real tensors.
        precision: `bf16` or `fp32`.
        mode: that of the module's tensors.
    """
    batch = batch._each(mode.from_tensor)
    with mode, WithoutValues(), autocast(precision, _CPU):  # type: ignore[no-untyped-call]
        module.begin_step([batch], 1.0)
    ledger = _Ledger(module, batch)

    def begin_loss(*_: object) -> None:
        ledger.kind = Kind.LOSS

    is_language_model = module.model.get_output_embeddings() is not None
    body = decoder_of(module.model) if is_language_model else module.model.base_model
    hook = body.register_forward_hook(begin_loss)
    with mode, ledger:
        with autocast(precision, _CPU):
            loss = module(batch)
        ledger.kind = Kind.WORKSPACE
        _backward(loss, module, ledger)
    hook.remove()
    return Pass(ledger.counted(Kind.ACTIVATIONS), ledger.counted(Kind.WORKSPACE))


def _backward(loss: Tensor, module: LossModule, ledger: _Ledger) -> None:
    hooks = [
        parameter.register_post_accumulate_grad_hook(ledger.is_gradient)  # type: ignore[no-untyped-call]
        for parameter in module.parameters()
        if parameter.requires_grad
    ]
    loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    module.zero_grad()


def simulate_loss(
    module: LossModule,
    batch: Batch,
    dtype: torch.dtype,
    precision: str,
    mode: FakeTensorMode | None,
    backward: bool,
) -> Bytes:
    """What the loss of a micro-batch needs beyond the decoder's states, at each of its moments.

    Args:
        module: on `meta`, which stands for a GPU, since more logits are computed at once there;
            or as `on_fake_cpu` leaves it.
        batch: real tensors.
        dtype: of the decoder's states.
        precision: `bf16` or `fp32`.
        mode: that of the module's tensors; None on `meta`.
        backward: whether its own backward pass counts too.

    Returns:
        Shape (operations, kinds), all but gradients as of the loss.
    """
    device = _CPU if mode else torch.device("meta")
    batch = batch._each(mode.from_tensor) if mode else batch.to(device)
    width = module.model.get_output_embeddings().weight.shape[-1]
    with mode or nullcontext():
        shape = (*next(_tensors(batch)).shape, width)
        states = torch.empty(shape, dtype=dtype, device=device, requires_grad=True)
    ledger = _Ledger(module, batch)
    ledger.kind = Kind.LOSS
    # Balancing routers, which is done in training alone, is no part of it.
    module.eval()
    with ExitStack() as around:
        around.enter_context(states_of_decoder(module.model, states))
        if mode:
            around.enter_context(mode)
        around.enter_context(ledger)
        with autocast(precision, _CPU) if mode else _linear_layers_in(dtype):
            module.begin_step([batch], 1.0)
            loss = module(batch)
            if backward and not mode:
                _backward(loss, module, ledger)
        if backward and mode:
            _backward(loss, module, ledger)
    module.train()
    events = ledger.counted(Kind.LOSS)
    in_loss = np.zeros_like(events)
    in_loss[:, Kind.GRADIENTS] = events[:, Kind.GRADIENTS]
    in_loss[:, Kind.LOSS] = events.sum(axis=1) - events[:, Kind.GRADIENTS]
    return in_loss


@contextmanager
def _linear_layers_in(dtype: torch.dtype) -> Iterator[None]:
    """During the body, linear layers compute in a type, as under autocast, which `meta` has not.

    Also in backward passes, in which no function mode is active.
    """
    linear = functional.linear

    def cast(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        bias = None if bias is None else bias.to(dtype)
        return linear(states.to(dtype), weight.to(dtype), bias)

    functional.linear = cast  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.linear = linear


class _Output(BaseModelOutput):
    """The output of any architecture's decoder, most of which have more than its states."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def states_of_decoder(model: PreTrainedModel, states: Tensor) -> Iterator[None]:
    """During the body, a model's decoder returns these."""
    decoder = decoder_of(model)
    before = decoder.forward
    decoder.forward = lambda *_, **__: _Output(last_hidden_state=states)
    try:
        yield
    finally:
        decoder.forward = before


def compiled_softmax(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What the compiled `softmax_loss` makes: its results, and nothing on the way."""
    return logits.new_empty(len(logits), dtype=torch.float32), torch.empty_like(logits)


# Of what models compute with, the functions that autocast runs in fp32 on CUDA, but not on CPUs.
# Source: PyTorch, "Autocast Op Reference".
_IN_FP32_ON_CUDA = {
    *("pow", "__pow__", "exp", "log", "log1p", "expm1", "rsqrt", "reciprocal", "softplus"),
    *("layer_norm", "group_norm", "softmax", "log_softmax", "cumsum", "cumprod"),
}


class _AutocastOfCuda(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in _IN_FP32_ON_CUDA and torch.is_autocast_enabled("cpu"):
            args = tuple(
                one.float() if isinstance(one, Tensor) and one.dtype == torch.bfloat16 else one
                for one in args
            )
        return func(*args, **(kwargs or {}))


def autocast_as_on_cuda(model: PreTrainedModel) -> None:
    """Have the blocks of a model on the CPU keep what they keep on CUDA."""

    def in_mode(forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def called(*args: Any, **kwargs: Any) -> Any:
            with _AutocastOfCuda():
                return forward(*args, **kwargs)

        return called

    # Their parts, because the backward pass calls those of a checkpointed block again.
    for block in blocks_of(model):
        for part in block.children():
            part.forward = in_mode(part.forward)


def offloaded() -> saved_tensors_hooks:
    """What `save_on_cpu` leaves on a GPU: nothing until it is used."""

    def made_again(saved: tuple[torch.Size, torch.dtype]) -> Tensor:
        shape, dtype = saved
        return torch.empty(shape, dtype=dtype, device=_CPU)

    return saved_tensors_hooks(lambda tensor: (tensor.shape, tensor.dtype), made_again)
