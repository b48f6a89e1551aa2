"""Attention for GPUs, as far as a CPU can say: masks, arguments, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import architectures
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from architectures import HYBRID, PACKED, UNPACKED
from packed import pieces_of
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from moray.model import attention
from moray.model.attention import FLEX, VARLEN, fault_of_kernel
from moray.tasks.language.loss import TokenLoss, make_batch
from moray.tasks.language.rows import FIRST, StoredSplit

ARCHITECTURES = PACKED | UNPACKED | HYBRID
SMALL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
WINDOW: dict[str, Any] = SMALL | {"sliding_window": 5}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "mistral with a window": lambda: MistralForCausalLM(MistralConfig(**WINDOW)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(head_dim=16, **SMALL)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=4, attn_pdrop=0.0)
    ),
}


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.2 * torch.randn_like(weights) * (weights.dim() > 1)
    return model


def by_pieces(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
) -> Tensor:
    """What PyTorch's documentation says of `varlen_attn`, a document at a time."""
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert cu_seq_q.dtype == torch.int32
    assert int(cu_seq_q.diff().max()) <= max_q == max_k
    assert (query.dtype, key.dtype) == (value.dtype, value.dtype)
    assert enable_gqa or query.shape[1] == key.shape[1]
    output = torch.zeros_like(query)
    for start, end in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        place = torch.arange(end - start)
        back = place[:, None] - place[None, :]
        assert window_size[1] == 0
        seen = (back >= 0) & ((back <= window_size[0]) | torch.tensor(window_size[0] < 0))
        queries, keys, values = (s[start:end].transpose(0, 1) for s in (query, key, value))
        found = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, scale=scale, enable_gqa=enable_gqa
        )
        output[start:end] = found.transpose(0, 1)
    return output


@pytest.fixture
def split(small: Path) -> StoredSplit:
    return StoredSplit(small / "tokens", "train")


@pytest.mark.parametrize("grouped", [True, False], ids=["grouped heads", "PyTorch 2.11"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_varlen_is_given_what_makes_the_loss_that_of_a_dense_mask(
    name: str, grouped: bool, split: StoredSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = build(name), make_batch(split.rows[:6])
    expected = TokenLoss(model, plain_head=True)(batch)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", by_pieces)
    monkeypatch.setattr(attention, "_takes_grouped_heads", lambda: grouped)
    model.set_attn_implementation(VARLEN)
    module = TokenLoss(model, plain_head=True)
    module.attention = "varlen"
    found = module(batch)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_varlen_makes_the_loss_of_a_dense_mask_for_each_architecture_that_is_given_it(
    name: str, split: StoredSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train.attention: auto` gives it to each of these on a GPU."""
    model, rows = architectures.build(ARCHITECTURES[name]()), np.array(split.rows[:6])
    if fault_of_kernel(model, VARLEN):
        return
    if name not in PACKED:
        # A document a row.
        rows["flags"][:, 1:] &= ~np.uint8(FIRST)
    batch = make_batch(rows)
    module = TokenLoss(model.eval(), plain_head=False)
    expected = module(batch)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", by_pieces)
    model.set_attn_implementation(VARLEN)
    module.attention = "varlen"
    torch.testing.assert_close(module(batch), expected, rtol=1e-5, atol=1e-4)


# Each is compiled, for seconds.
@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param("llama", marks=pytest.mark.release), "mistral with a window"]
)
@torch.no_grad()
def test_flex_attention_gives_the_loss_of_a_dense_mask(name: str, split: StoredSplit) -> None:
    model, batch = build(name), make_batch(split.rows[:6])
    expected = TokenLoss(model, plain_head=True)(batch)
    model.set_attn_implementation(FLEX)
    torch.testing.assert_close(
        TokenLoss(model, plain_head=True)(batch), expected, rtol=1e-5, atol=1e-4
    )


def test_documents_begin_where_the_rows_pieces_do(split: StoredSplit) -> None:
    rows, block_size = 6, split.block_size
    ends = make_batch(split.rows[:rows]).cu_seqlens
    expected = set()
    for row in range(rows):
        place = row * block_size
        for piece in pieces_of(split, row):
            expected.add(place)
            place += len(piece.tokens)
        # The padding is a piece of its own, or isn't there.
        expected.add(place)
    assert set(ends.tolist()) == expected | {rows * block_size}
    assert ends.tolist() == sorted(ends.tolist())
    assert len(ends) & (len(ends) - 1) == 0
    assert ends[-1] == rows * block_size


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_asking_what_a_kernel_can_compute_leaves_the_model_as_it_was(name: str) -> None:
    model, tokens = build(name), torch.arange(24).view(2, 12)
    before = model(tokens).logits
    for kernel in (VARLEN, FLEX):
        assert fault_of_kernel(model, kernel) is None, kernel
        assert torch.equal(model(tokens).logits, before), kernel
        assert not model.training, kernel


def refused(kind: str, **keys: Any) -> PreTrainedModel:
    if kind == "gemma2":
        return Gemma2ForCausalLM(Gemma2Config(head_dim=16, **SMALL, **keys))
    return LlamaForCausalLM(LlamaConfig(**(SMALL | keys)))


@pytest.mark.parametrize(
    ("make", "kernels", "reason"),
    [
        (lambda: refused("llama", attention_dropout=0.1), {VARLEN, FLEX}, "has dropout"),
        (lambda: refused("gemma2"), {VARLEN}, "attention scores are capped"),
        (lambda: refused("llama", head_dim=512), {VARLEN}, "wider than 256"),
        (lambda: refused("llama", head_dim=8), {FLEX}, "narrower than 16"),
    ],
)
def test_a_model_that_a_kernel_does_not_compute_has_a_reason(
    make: Callable[[], PreTrainedModel], kernels: set[str], reason: str
) -> None:
    model = make()
    for kernel in (VARLEN, FLEX):
        fault = fault_of_kernel(model, kernel)
        assert (fault is not None) is (kernel in kernels)
        assert fault is None or reason in fault


def test_what_a_kernel_can_compute_is_known_without_weights() -> None:
    with torch.device("meta"):
        model = MODELS["llama"]()
    assert fault_of_kernel(model, VARLEN) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kernel", [VARLEN, FLEX])
def test_on_a_gpu_kernels_give_the_gradients_of_a_dense_mask(
    name: str, kernel: str, split: StoredSplit
) -> None:
    device = torch.device("cuda")
    batch = make_batch(split.rows[:6]).to(device)
    found = {}
    for implementation in ("sdpa", kernel):
        model = build(name).to(device)
        model.set_attn_implementation(implementation)
        module = TokenLoss(model, plain_head=True)
        module.attention = "varlen" if implementation == VARLEN else None
        with torch.autocast("cuda", torch.bfloat16):
            loss = module(batch)
        torch.autograd.backward(loss)
        gradients = [weights.grad for weights in model.parameters() if weights.grad is not None]
        found[implementation] = loss.detach(), torch.cat([g.flatten() for g in gradients])
    (expected, slope), (loss, other) = found["sdpa"], found[kernel]
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=0)
    assert F.cosine_similarity(slope, other, dim=0) > 0.99
