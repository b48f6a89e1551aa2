"""The interface between a task and everything that trains."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moray.config.tasks import module_of
from moray.errors import UserError
from moray.model.quantization import Bits, Quantization
from moray.proofs.figures import Figures
from moray.provenance.manifest import read_manifest
from moray.rows.store import Record, RowPositions, Rows, WindowReader


class Batch:
    """Rows as tensors; subclasses are dataclasses whose fields are tensors or other batches."""

    def to(self, device: torch.device) -> Self:
        """A copy of the batch on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """A copy from which a GPU copies while the host goes on."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return type(self)(
            *(one._each(change) if isinstance(one, Batch) else change(one) for one in values)
        )


class LossModule(nn.Module):
    """A model and its loss: called with a batch, it returns the sum of the loss, fp32, shape ().

    The engine chooses the attention implementation, as named in the config; None for the default of
    transformers.
    """

    model: PreTrainedModel
    attention: str | None = None

    def begin_step(self, batches: Sequence[Batch], weight: float) -> None:
        """Prepare for a step of these micro-batches, whose loss is divided by a weight.

        All workers call it together, with as many; they are not on the module's device. In
        evaluation mode, they are all rows whose loss is computed.
        """

    def balance_routers(self, setting: bool | float) -> None:
        """Add a mixture's load-balancing loss in training, with this coefficient or its own.

        Raises:
            UserError: if the task or the model has none.
        """
        raise UserError("train.router_aux_loss", "is for language models only", "set it to false")

    def compile_loss(self) -> None:
        """Compile what is computed outside of the model's blocks, where that saves time."""

    def external_parameters(self) -> list[nn.Parameter]:
        """The parameters that are used outside of the module that they belong to."""
        return []


class Task(Protocol):
    """What the rows of a store mean. All workers make an equal one.

    The settings are those sections of the run's config that only its task reads, by name.
    """

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None: ...

    @property
    def unit(self) -> str:
        """What speed is counted in, plural."""

    @property
    def units_per_row(self) -> int:
        """Number of these in a row."""

    @property
    def row_length(self) -> int | None:
        """Number of tokens in a row; None if rows aren't sequences."""

    @property
    def fault_of_bf16_on_cpu(self) -> str | None:
        """Why the models of these rows can't be trained in bf16 on a CPU; None if they can."""

    @property
    def record(self) -> Record:
        """The type of a row."""

    def load(
        self, start: Path, dtype: torch.dtype, quantization: Quantization | None
    ) -> PreTrainedModel:
        """Load the model to train, in evaluation mode.

        Raises:
            UserError: if the folder doesn't contain a model for this task.
        """

    def empty(self, start: Path, dtype: torch.dtype) -> PreTrainedModel:
        """The model that `load` returns, without its weights, on PyTorch's `meta` device."""

    def loss_module(self, model: PreTrainedModel) -> LossModule:
        """Wrap a model; all workers call this together, and the first one has the weights.

        Raises:
            UserError: if the model doesn't fit the rows.
        """

    def flops_per_row(self, model: PreTrainedModel) -> float:
        """FLOPs of a forward and a backward pass for a row."""

    def batch(self, rows: Rows, row_positions: RowPositions | None) -> Batch:
        """Make a batch of rows; records of zeros are padding, which adds nothing to the loss.

        Called in a thread beside the training, so it should use NumPy rather than PyTorch, whose
        threads would compete with those of the training.

        Args:
            rows: shape (rows,).
            row_positions: where in the order's sequence the rows are; None for held-out rows.
                Whatever is random about a batch is a function of it.
        """

    def weight(self, rows: Rows) -> int:
        """What the loss of rows is averaged over: the number of trained tokens, for example."""

    def plain(
        self,
        folder: Path,
        start: Path,
        rows: Rows,
        bits: Bits | None,
        device: torch.device,
        gradient: bool,
    ) -> Figures:
        """What plain transformers computes of rows with the model in a folder, without dropout.

        It shares no code with `load`, `batch` and `loss_module`, which it is compared with.

        Args:
            folder: before the first step, that of `start`.
            start: folder of the model that the run started from.
            bits: of the quantized base of an adapter.
            gradient: whether the norm of the gradient is wanted.
        """

    def window_reader(self, store: Path, rows_url: str) -> WindowReader:
        """A function that returns the rows of a window of the train split, in any process.

        The store's files, or copies of them, are below the URL, which may be a folder.
        """


def task_of(store: Path, settings: Mapping[str, Any]) -> Task:
    """The task that a store's manifest names, from `task` of its module `task`."""
    manifest = read_manifest(store)
    task: Task = module_of(manifest["task"], "task").task(manifest, settings)
    return task
