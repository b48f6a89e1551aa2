"""What the memory of a run depends on, and its module without weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from moray.config import extras
from moray.config.schema.train import Adapter, Train
from moray.config.tasks import TASKS, TaskName, module_of
from moray.errors import UserError, first_line
from moray.extras.memory_plan.quantized import quantize
from moray.extras.memory_plan.simulation import (
    WithoutValues,
    compiled_softmax,
    offloaded,
    states_of_decoder,
)
from moray.model.attention import VARLEN, fault_of_kernel
from moray.model.folder import DTYPES
from moray.model.forward import hook_saved, resolve
from moray.tasks.language.loss import TokenLoss
from moray.train.engine import enable_gradient_checkpointing
from moray.train.kernels import choose_attention, use_attention
from moray.train.memory import rows_of_micro_batch
from moray.train.task import Batch, LossModule

# Tasks whose runs can be planned.
PLANNED = tuple(task for task in get_args(TaskName) if task != "images")


@dataclass(frozen=True)
class Setup:
    """What memory depends on.

    Attributes:
        model: path of the model in the config, for errors.
        folder: has the model's `config.json`.
        block_size: tokens in a row.
        settings: the `train` section.
        adapter: the `adapter` section.
        workers: number of workers.
        device: of the workers.
        task: what the run is; the module `planned` of its folder has its model, loss and batches.
        task_settings: the sections that only its task reads, by name.
        packing: whether documents share rows; for tasks on text.
    """

    model: str
    folder: Path
    block_size: int
    settings: Train
    adapter: Adapter | None
    workers: int
    device: Literal["cuda", "cpu"]
    task: TaskName = "language"
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    packing: bool = True

    @property
    def own(self) -> ModuleType:
        """What the task computes with."""
        return module_of(self.task, "planned")

    @property
    def has_logits(self) -> bool:
        """Whether the loss is of logits over a vocabulary, which are computed in chunks."""
        return TASKS[self.task].modality == "text"

    @property
    def needs_most_backward(self) -> bool:
        """Whether its loss computes logits again in the backward pass, with their gradients."""
        return self.has_logits and self.task != "language"

    @property
    def row_length(self) -> int | None:
        """Tokens of a row to a model; None if attention needn't know."""
        if not self.has_logits:
            return None
        length: int = self.own.row_length(self.block_size, self.packing)
        return length

    def empty(self) -> PreTrainedModel:
        """The model that is trained, before any adapter, on `meta`."""
        settings, adapter = self.settings, self.adapter
        dtype = DTYPES[adapter.base_dtype if adapter else settings.weights]
        model: PreTrainedModel = self.own.empty(self.folder, dtype)
        return model

    def fault_of_quantization(self) -> UserError | None:
        """Why the base can't be quantized as the adapter asks; None if it can."""
        if self.adapter is None or self.adapter.quantize_base is None:
            return None
        bits = self.adapter.quantize_base
        try:
            extras.part(extras.QUANTIZED[bits], "base").check_quantized(self.empty(), bits)
        except UserError as error:
            return error
        return None

    def batch(self, rows: int, few: bool = False) -> Batch:
        """Rows that are full: of one document each, or two answers; all of its tokens are trained.

        Args:
            few: whether only the last token of each is trained.
        """
        texts = (self.packing, few, self.task_settings) if self.has_logits else ()
        full: Batch = self.own.batch(rows, self.block_size, *texts)
        return full

    def with_train(self, **keys: object) -> "Setup":
        """The same with other keys of the `train` section."""
        return replace(self, settings=self.settings.model_copy(update=keys))

    @property
    def rows(self) -> int:
        """Rows of a micro-batch."""
        return rows_of_micro_batch(self.settings, self.workers)

    @property
    def precision(self) -> str:
        """`bf16` or `fp32`; GPUs are taken to have bf16."""
        if "bf16" in (self.settings.weights, self.adapter and self.adapter.base_dtype):
            return "bf16"
        precision = self.settings.precision
        if self.device == "cuda":
            return "bf16" if precision == "auto" else precision
        return resolve(precision, torch.device("cpu"))


def module_without_weights(setup: Setup) -> tuple[LossModule, list[torch.Tensor]]:
    """The module that is trained, on `meta`, and its quantized weights."""
    adapter, settings = setup.adapter, setup.settings
    bits = adapter.quantize_base if adapter else None
    model = setup.empty()
    with without_values(model, setup):
        plain = setup.has_logits and has_plain_head(model)
        # PEFT's adapters of experts have no autocast on `meta`.
        attention = _attention(model, setup)
    quantized = quantize(model, bits) if bits else []
    if adapter:
        # PEFT takes a while to import.
        from moray.model.adapter import add_to_base_of_run

        recompute = not settings.gradient_checkpointing
        add_to_base_of_run(model, adapter, settings.seed, recompute)
    if settings.strategy == "fsdp2":
        # It casts what it gathers.
        model.to(DTYPES[setup.precision])
    texts = (plain, setup.task_settings) if setup.has_logits else ()
    module: LossModule = setup.own.loss_module(model, *texts)
    if settings.router_aux_loss:
        module.balance_routers(settings.router_aux_loss)
    module.attention = attention
    use_attention(model, attention)
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(model)
    if settings.gradient_checkpointing == "offload" and setup.device == "cuda":
        hook_saved(model, offloaded)
    is_compiled = setup.device == "cuda" and settings.compile is not False
    if is_compiled and isinstance(module, TokenLoss):
        module.softmax = compiled_softmax
    module.train()
    return module, quantized


@contextmanager
def without_values(model: PreTrainedModel, setup: Setup) -> Iterator[None]:
    """Run a model without values in the body; say that it can't be planned if that fails."""
    try:
        with WithoutValues():  # type: ignore[no-untyped-call]
            yield
    except RuntimeError as error:
        raise UserError(
            setup.model,
            f"a {model.config.model_type} model can't be run without values ({first_line(error)})",
            "set train.micro_batch_size to a number, train a few steps, and see what is used",
        ) from error


def _attention(model: PreTrainedModel, setup: Setup) -> str | None:
    settings = setup.settings
    if setup.device == "cpu":
        compiled, cpu = settings.compile is True, torch.device("cpu")
        return choose_attention(model, settings, cpu, setup.row_length, compiled=compiled)
    if settings.attention in ("sdpa", "eager"):
        return settings.attention
    if not setup.has_logits:
        return None
    # Also for `flex`, which keeps as much.
    is_fused = setup.precision == "bf16" and not fault_of_kernel(model, VARLEN)
    return "varlen" if is_fused else None


# Operations of a linear layer on any tensor; of `meta`, which has no values, all that can be asked.
_LINEAR = {
    "mm", "addmm", "linear", "matmul", "bmm", "t", "transpose", "view", "_unsafe_view", "reshape",
    "slice", "alias", "detach", "expand", "permute", "unsqueeze", "squeeze",
}  # fmt: skip


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Callable[..., object], types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.__name__.partition(".")[0])
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether logits are the output embedding of the decoder's states, by the operations.

    The training asks the same of values, which a model on `meta` doesn't have.

    Args:
        model: on `meta`.
    """
    operations = _Operations()
    width = model.get_output_embeddings().weight.shape[-1]
    tokens = torch.zeros(1, 2, dtype=torch.long, device="meta")
    states = torch.empty(1, 2, width, dtype=model.dtype, device="meta")
    with states_of_decoder(model, states), operations:
        model(input_ids=tokens, use_cache=False)
    return set(operations.names) <= _LINEAR
