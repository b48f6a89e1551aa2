"""What a plan says against what PyTorch's allocator gives to a real step on the CPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from present import needs
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
)

from moray.config.schema.train import Adapter, Train
from moray.config.tasks import TaskName, module_of
from moray.extras.memory_plan.demand import Demand, Setup
from moray.model.adapter import add_adapter
from moray.model.dropout import without_dropout
from moray.model.load import load_model
from moray.model.quantization import Quantization
from moray.tasks.language.loss import TokenBatch, TokenLoss, has_plain_head, make_batch
from moray.tasks.language.rows import FIRST, TRAINED, row_type
from moray.train.optimizer import as_saved
from moray.train.step import gradients
from moray.train.strategies import make_strategy
from moray.train.task import Batch, LossModule
from moray.workers.entry import Worker

TOKENS, VOCABULARY = 128, 1000
SHARED = {
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
}
GPT2 = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=TOKENS)
LLAMA = LlamaConfig(
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=176,
    vocab_size=VOCABULARY,
    max_position_embeddings=TOKENS,
)
BERT = BertConfig(**{key: LLAMA.to_dict()[key] for key in SHARED - {"num_key_value_heads"}})
# A width at which weights count for as much as activations.
WIDE = LlamaConfig(**{**LLAMA.to_diff_dict(), "hidden_size": 256, "intermediate_size": 688})
# Logits with a cap, which are computed all at once.
_SHAPE = {key: value for key, value in LLAMA.to_dict().items() if key in SHARED}
GEMMA2 = Gemma2Config(**_SHAPE, head_dim=16)
CASES: dict[str, tuple[PreTrainedConfig, dict[str, Any], Adapter | None]] = {
    "gpt2": (GPT2, {}, None),
    "llama": (LLAMA, {}, None),
    "wide": (WIDE, {}, None),
    "gemma2": (GEMMA2, {}, None),
    "checkpointing": (LLAMA, {"gradient_checkpointing": True}, None),
    "accumulation": (WIDE, {"global_batch_size": 12}, None),
    "lora": (LLAMA, {}, Adapter(rank=4)),
    "bf16": (WIDE, {"precision": "bf16", "weights": "bf16"}, None),
    "bf16 base": (LLAMA, {"precision": "bf16"}, Adapter(rank=4, base_dtype="bf16")),
    "8 bits": (
        WIDE,
        {"precision": "bf16"},
        Adapter(rank=4, base_dtype="bf16", quantize_base="8bit"),
    ),
}
# Extras that others need.
_NEEDED = {"bf16": "bf16_weights", "8 bits": "quantized_base"}


def batch(rows: int) -> TokenBatch:
    """Rows of two documents each, all of whose tokens are trained."""
    records = np.zeros(rows, row_type(TOKENS, np.dtype("<u2")))
    records["flags"] = TRAINED
    records["flags"][:, [0, TOKENS // 2]] |= FIRST
    return make_batch(records)


def held_by_a_step(
    folder: Path, settings: Train, adapter: Adapter | None, rows: int, worker: Worker
) -> float:
    """Bytes of weights and optimizer state, and the most that a step allocates beside them."""
    in_bf16 = "bf16" in (settings.weights, adapter and adapter.base_dtype)
    bits = adapter.quantize_base if adapter else None
    quantization = Quantization(bits) if bits else None
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    model = load_model(folder, dtype, quantization=quantization)
    if adapter:
        add_adapter(model, adapter, seed=0)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    module = TokenLoss(model, has_plain_head(model))
    batches = [batch(rows) for _ in range(settings.global_batch_size // rows)]
    return held_by(module, batches, settings, worker)


def held_by(module: LossModule, batches: Sequence[Batch], settings: Train, worker: Worker) -> float:
    """The same of a module and the batches of a step."""
    module.train()
    strategy = make_strategy(settings, worker)
    strategy.wrap(module)
    tensors = [*module.parameters(), *map(as_saved, strategy.state().values())]
    held = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        gradients(strategy, batches, 1.0, settings, worker)
        strategy.step(1e-4)
    assert seen.profiler
    events = seen.profiler.kineto_results.events()
    allocated = [event for event in events if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(allocated, key=lambda event: event.start_ns())]
    return sum(held.values()) + float(np.cumsum(sizes).max())


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs(_NEEDED[name]) if name in _NEEDED else []) for name in CASES],
)
@pytest.mark.parametrize("rows", [1, 4])
def test_a_plan_is_within_a_tenth_of_what_a_step_takes(
    name: str, rows: int, tmp_path: Path, alone: Worker
) -> None:
    config, keys, adapter = CASES[name]
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    values = {"precision": "fp32", "global_batch_size": rows, "micro_batch_size": rows, **keys}
    settings = Train(compile=False, **values)
    held = held_by_a_step(tmp_path, settings, adapter, rows, alone)
    setup = Setup("models.m", tmp_path, TOKENS, settings, adapter, workers=1, device="cpu")
    assert Demand(setup).total(rows) == pytest.approx(held, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("adapter", [None, Adapter(rank=4)])
@pytest.mark.parametrize(
    ("config", "task"),
    [
        (BERT, "classification"),
        (LLAMA, "classification"),
        (BERT, "token_classification"),
        pytest.param(LLAMA, "token_classification", marks=pytest.mark.release),
        pytest.param(BERT, "reward", marks=pytest.mark.release),
        (LLAMA, "reward"),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_a_plan_of_labelled_texts_is_too(
    config: PreTrainedConfig, task: TaskName, adapter: Adapter | None, tmp_path: Path, alone: Worker
) -> None:
    config.pad_token_id = 0
    of_words = task == "token_classification"
    auto = AutoModelForTokenClassification if of_words else AutoModelForSequenceClassification
    auto.from_config(config).save_pretrained(tmp_path)
    settings = Train(compile=False, precision="fp32", global_batch_size=4, micro_batch_size=4)
    own = module_of(task, "planned")
    model = module_of("classification", "classifier").load(tmp_path)
    model = without_dropout(model) if task == "reward" else model
    if adapter:
        add_adapter(model, adapter, seed=0)
    batch = own.batch(4, TOKENS)
    # Without any padding, transformers leaves out the mask.
    batch.mask[0, -1] = 0
    held = held_by(own.loss_module(model), [batch], settings, alone)
    setup = Setup("models.m", tmp_path, TOKENS, settings, adapter, 1, device="cpu", task=task)
    assert Demand(setup).total(4) == pytest.approx(held, rel=0.1)
