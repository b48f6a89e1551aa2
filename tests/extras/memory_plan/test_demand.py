"""What a plan says against what PyTorch's allocator gives to a real step on the CPU."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
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
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from moray.config import extras
from moray.config.schema.train import Adapter, Train
from moray.config.tasks import TaskName, module_of
from moray.extras.memory_plan.demand import Demand
from moray.extras.memory_plan.setup import Setup
from moray.model.adapter import add_adapter
from moray.model.dropout import without_dropout
from moray.model.load import load_model
from moray.model.quantization import Quantization
from moray.tasks.language.loss import TokenBatch, TokenLoss, has_plain_head, make_batch
from moray.tasks.language.rows import FIRST, TRAINED, row_type
from moray.train.optimizer import as_saved
from moray.train.step import gradients, prepare
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
# Mixtures of eight experts, of which a token has two; half of their weights are those of experts.
_EXPERTS = _SHAPE | {"hidden_size": 256, "num_experts_per_tok": 2}
QWEN3_MOE = Qwen3MoeConfig(**_EXPERTS, head_dim=64, moe_intermediate_size=96, num_experts=8)
MIXTRAL = MixtralConfig(**_EXPERTS | {"intermediate_size": 96}, num_local_experts=8)
_OF_EXPERTS = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
_IN_4_BITS = Adapter(rank=4, base_dtype="bf16", quantize_base="4bit", target_modules=_OF_EXPERTS)
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
    "qwen3_moe": (QWEN3_MOE, {}, None),
    "qwen3_moe, bf16": (QWEN3_MOE, {"precision": "bf16"}, None),
    "qwen3_moe, balanced": (QWEN3_MOE, {"router_aux_loss": True}, None),
    "qwen3_moe, lora": (QWEN3_MOE, {}, Adapter(rank=4, target_modules=_OF_EXPERTS)),
    "qwen3_moe, 4 bits": (QWEN3_MOE, {"precision": "bf16"}, _IN_4_BITS),
    "mixtral": (MIXTRAL, {}, None),
    "mixtral, lora": (MIXTRAL, {}, Adapter(rank=4, target_modules=_OF_EXPERTS)),
    "mixtral, 4 bits": (MIXTRAL, {"precision": "bf16"}, _IN_4_BITS),
    "mixtral, 4 bits, checkpointing": (
        MIXTRAL,
        {"precision": "bf16", "gradient_checkpointing": True},
        _IN_4_BITS,
    ),
}
TOP_K = 64
SECTIONS: dict[TaskName, dict[str, Any]] = {
    "preference": {},
    "kto": {},
    "distillation": {"teacher": "teacher", "top_k": TOP_K},
}
# Extras that others need.
_NEEDED = {
    "bf16": "bf16_weights",
    **{name: "quantized_base" for name in CASES if "8 bits" in name or "4 bits" in name},
}


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
        base = extras.part("quantized_base", "base") if bits else None
        with (
            base.adding_adapters(model, recompute=not settings.gradient_checkpointing)
            if base
            else nullcontext()
        ):
            add_adapter(model, adapter, seed=0)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    module = TokenLoss(model, has_plain_head(model))
    if settings.router_aux_loss:
        module.balance_routers(settings.router_aux_loss)
    batches = [batch(rows) for _ in range(settings.global_batch_size // rows)]
    return held_by(module, batches, settings, worker) + sum(map(nbytes, scales_of(model)))


def scales_of(model: PreTrainedModel) -> Iterator[torch.Tensor]:
    """The scales of weights in 4 bits, and the scales of these."""
    for module in model.modules():
        states = [*vars(module).get("quant_states", {}).values()]
        states += [getattr(weight, "quant_state", None) for weight in module.parameters(False)]
        for state in {id(state): state for state in states if state}.values():
            yield from (state.absmax, state.state2.absmax)


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def held_by(module: LossModule, batches: Sequence[Batch], settings: Train, worker: Worker) -> float:
    """The same of a module and the batches of a step."""
    module.train()
    strategy = make_strategy(settings, worker)
    strategy.wrap(module)
    prepare(module, batches, 1.0, settings, worker)
    tensors = [*module.parameters(), *map(as_saved, strategy.state().values())]
    held = {one.untyped_storage().data_ptr(): nbytes(one) for one in tensors}
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
@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.release), 4])
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
    own: Any = module_of(task, "planned")
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


@pytest.mark.long
@needs("quantized_base")
@pytest.mark.parametrize("config", [QWEN3_MOE, MIXTRAL], ids=lambda config: config.model_type)
def test_the_bytes_of_weights_in_4_bits_are_those_of_their_tensors(
    config: PreTrainedConfig, tmp_path: Path
) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    adapter = Adapter(rank=1, base_dtype="bf16", quantize_base="4bit", target_modules=["q_proj"])
    setup = Setup("models.m", tmp_path, TOKENS, Train(micro_batch_size=1), adapter, 1, "cpu")
    model = load_model(tmp_path, torch.bfloat16, quantization=Quantization("4bit"))
    held = sum(map(nbytes, [*model.parameters(), *scales_of(model)]))
    demand = Demand(setup)
    in_adapter = 4 * demand.trained
    assert demand.parts(1)["weights"] - in_adapter == pytest.approx(held, rel=1e-3)


def rows_of_text(task: TaskName, rows: int) -> Batch:
    """Rows of two documents, pairs or answers each; all tokens but the first ones are trained."""
    record = row_type(TOKENS, np.dtype("<u2"))
    pieces = {"preference": 4, "kto": 4}.get(task, 2)
    if task == "distillation":
        record = module_of(task, "rows").with_teacher(record, TOKENS, TOP_K)
    records = np.zeros(rows, record)
    flags = records["flags"].reshape(rows, pieces, -1)
    flags[:, :, 1:] = TRAINED
    flags[:, :, 0] = FIRST
    if task == "distillation":
        taught: Batch = module_of(task, "loss").make_taught_batch(records)
        return taught
    rejected = module_of("preference", "rows").REJECTED
    if task == "preference":
        flags[:, 1::2] |= rejected
        pairs: Batch = module_of(task, "task").make_pair_batch(records, packing=True)
        return pairs
    flags[:, 2:] |= rejected
    answers: Batch = module_of(task, "task").make_answer_batch(records)
    return answers


@pytest.mark.long
@pytest.mark.parametrize("task", SECTIONS)
@pytest.mark.parametrize("adapter", [None, Adapter(rank=4)], ids=["full", "lora"])
# The last one's chunks of logits are two.
@pytest.mark.parametrize(
    ("config", "rows"),
    [(LLAMA, 4), (GEMMA2, 4), (QWEN3_MOE, 4), (WIDE, 12)],
    ids=["llama", "gemma2", "qwen3_moe", "wide"],
)
def test_a_plan_of_answers_and_of_a_teacher_is_too(
    config: PreTrainedConfig,
    rows: int,
    task: TaskName,
    adapter: Adapter | None,
    tmp_path: Path,
    alone: Worker,
) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    settings = Train(compile=False, precision="fp32", global_batch_size=rows, micro_batch_size=rows)
    model = without_dropout(load_model(tmp_path))
    if adapter:
        add_adapter(model, adapter, seed=0)
    sections: dict[str, Any] = {task: SECTIONS[task]}
    module = module_of(task, "planned").loss_module(model, has_plain_head(model), sections)
    held = held_by(module, [rows_of_text(task, rows)], settings, alone)
    setup = Setup(
        "models.m", tmp_path, TOKENS, settings, adapter, 1, "cpu", task=task, task_settings=sections
    )
    assert Demand(setup).total(rows) == pytest.approx(held, rel=0.1)
