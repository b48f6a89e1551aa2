"""Which attention a run takes, and that what is taken changes nothing but rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fleet import losses
from transformers import GPT2Config, GPT2LMHeadModel

from moray.config.schema import Train
from moray.errors import UserError
from moray.model.load import load_model
from moray.train.engine import attention
from moray.train.engine.attention import choose_attention, use_attention
from moray.train.loop import train
from moray.workers.worker import Worker

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
BF16 = {"precision": "bf16"}


@pytest.fixture
def modern(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has FlashAttention, as far as it is asked."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.mark.parametrize(
    ("compiled", "block_size", "expected"),
    [(True, 64, "eager"), (True, 512, "eager"), (True, 513, None), (False, 64, None)],
)
def test_on_a_cpu_attention_is_plain_where_rows_are_short_and_blocks_compiled(
    compiled: bool, block_size: int, expected: str | None, model_folder: Path
) -> None:
    model = load_model(model_folder)
    assert choose_attention(model, Train(), CPU, block_size, compiled) == expected
    tokens = torch.arange(48).view(2, 24)
    with torch.no_grad():
        before = model(input_ids=tokens).logits
        use_attention(model, expected)
        assert model.config._attn_implementation == (expected or "sdpa")
        torch.testing.assert_close(model(input_ids=tokens).logits, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["varlen", "flex"])
def test_what_has_no_backward_pass_on_a_cpu_is_refused_there(
    kind: Any, make_job: Any, alone: Worker
) -> None:
    with pytest.raises(UserError) as caught:
        train(make_job(attention=kind), alone)
    assert str(caught.value) == (
        f"train.attention: {kind} needs GPUs: in PyTorch, it has no backward pass on CPUs; "
        "set it to auto, or train on GPUs"
    )


def test_the_attention_that_the_config_names_is_taken_and_differs_by_rounding(
    make_job: Any, alone: Worker
) -> None:
    found = {}
    for kind in ("auto", "sdpa", "eager"):
        job = make_job(kind, attention=kind, compile=False)
        train(job, alone)
        found[kind] = losses(job)
    assert found["auto"] == found["sdpa"]
    assert found["eager"] != found["sdpa"]
    assert found["eager"] == pytest.approx(found["sdpa"], rel=1e-5)


@pytest.mark.usefixtures("modern")
def test_on_a_gpu_what_the_config_names_is_taken_where_model_and_precision_allow_it() -> None:
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=32, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config)
    assert choose_attention(model, Train(**BF16), GPU, 64, True) is None
    for kind in ("sdpa", "eager", "flex", "varlen"):
        settings = Train(attention=kind, **BF16)
        assert choose_attention(model, settings, GPU, 64, True) == kind


def test_a_gpu_without_flash_attention_is_not_given_varlen(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    model = load_model(model_folder)
    assert choose_attention(model, Train(**BF16), GPU, 64, True) is None
    with pytest.raises(UserError, match="the GPU is too old for FlashAttention"):
        choose_attention(model, Train(attention="varlen", **BF16), GPU, 64, True)


@pytest.mark.usefixtures("modern")
@pytest.mark.parametrize("kind", ["varlen", "flex"])
def test_a_model_that_a_kernel_can_not_compute_is_refused_with_the_reason(kind: Any) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32))
    assert choose_attention(model, Train(**BF16), GPU, 64, True) is None
    with pytest.raises(UserError) as caught:
        choose_attention(model, Train(attention=kind, **BF16), GPU, 64, True)
    assert str(caught.value).startswith(
        f"train.attention: {kind} can't be used with this gpt2 model: its attention has dropout ("
    )


def test_varlen_in_fp32_is_refused(model_folder: Path) -> None:
    settings = Train(attention="varlen", precision="fp32")
    with pytest.raises(UserError, match="the kernel computes in bf16"):
        choose_attention(load_model(model_folder), settings, GPU, 64, True)


def test_an_attention_that_an_architecture_does_not_have_is_refused(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attention._NAMES, "sdpa", "no such thing")
    with pytest.raises(UserError, match=r"^train\.attention: sdpa can't be used"):
        use_attention(load_model(model_folder), "sdpa")
