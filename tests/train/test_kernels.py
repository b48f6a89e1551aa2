"""Whether a run is compiled and which attention it takes; both change nothing but rounding."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import HYBRID, PACKED, UNPACKED, build
from fleet import losses
from present import needs
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from moray.config.schema.train import Adapter, Train
from moray.errors import UserError
from moray.model.forward import blocks_of
from moray.model.load import empty_model, load_model
from moray.rows.store import StoredRows
from moray.tasks.language import loss
from moray.tasks.language.cross_entropy import softmax_loss
from moray.tasks.language.loss import TokenBatch, TokenLoss
from moray.tasks.language.rows import FIRST, TRAINED
from moray.train import engine, kernels
from moray.train.kernels import (
    choose_attention,
    compiles_whole,
    reason_not_to_compile,
    uncompiled,
    use_attention,
    use_cache,
)
from moray.train.loop import train
from moray.train.step import gradients, micro_batches
from moray.train.strategies import make_strategy
from moray.train.task import task_of
from moray.workers.entry import Worker

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
# What a core, and a data-centre GPU, does in a minute.
MINUTE = {CPU: 9e12, GPU: 6e15}


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that is known to work; what it is asked is tested below."""
    monkeypatch.setattr(kernels, "compiler_fault", lambda device: None)


@pytest.fixture
def llama(model_folder: Path) -> PreTrainedModel:
    return empty_model(model_folder)


@pytest.mark.usefixtures("sound")
def test_a_recurrence_is_compiled_only_if_the_config_says_so() -> None:
    mamba = build(UNPACKED["Mamba"]())
    reason = "the compiler would unroll a mamba model token by token"
    assert reason_not_to_compile(Train(), mamba, 1e30, CPU, 1) == reason
    assert reason_not_to_compile(Train(compile=True), mamba, 1e30, CPU, 1) is None
    for attends in ("GPT-2", "BLOOM", "MPT", "OPT"):
        model = build((PACKED | UNPACKED)[attends]())
        assert reason_not_to_compile(Train(), model, 1e30, CPU, 1) is None


def test_a_small_model_is_compiled_as_a_whole_if_a_gpu_sees_many_batches_of_it(
    llama: PreTrainedModel,
) -> None:
    many, few = 50_000 * 8, 50_000 * 8 - 1
    gpu = Worker(0, 1, GPU)
    busy = 2e12 * len(blocks_of(llama)) / 8

    def whole(
        adapter: Adapter | None = None,
        flops: float = 1e9,
        rows: int = many,
        worker: Worker = gpu,
        **keys: Any,
    ) -> bool:
        return compiles_whole(llama, Train(**keys), adapter, flops, rows, worker)

    assert whole()
    assert whole(Adapter())
    assert not whole(rows=few)
    assert not whole(flops=busy)
    assert not whole(Adapter(quantize_base="4bit"))
    assert not whole(gradient_checkpointing=True)
    assert not whole(strategy="fsdp2")
    assert not whole(worker=Worker(0, 2, GPU))
    assert not whole(worker=Worker(0, 1, CPU))


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "adapter",
    [
        None,
        Adapter(rank=2),
        pytest.param(Adapter(rank=2, quantize_base="4bit"), marks=needs("quantized_base")),
        pytest.param(Adapter(rank=2, quantize_base="8bit"), marks=needs("quantized_base")),
    ],
    ids=["full", "LoRA", "QLoRA", "8 bits"],
)
def test_each_block_runs_as_one_graph_and_none_is_compiled_after_the_second_step(
    architecture: str,
    adapter: Adapter | None,
    make_job: Any,
    alone: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a compiler that counts; the number of documents and of trained tokens varies."""
    runs = 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            nonlocal runs
            runs += 1
            return graph(*values)

        return run

    def compile_model(model: PreTrainedModel, whole: bool) -> None:
        for block in blocks_of(model):
            block.compile(dynamic=False, backend=count)

    def compile_loss(self: TokenLoss) -> None:
        self.softmax = torch.compile(softmax_loss, backend="eager")

    torch._dynamo.reset()
    monkeypatch.setattr(kernels, "compile_model", compile_model)
    monkeypatch.setattr(TokenLoss, "compile_loss", compile_loss)
    # Otherwise so few trained tokens would all be padded to one number.
    monkeypatch.setattr(loss, "_POSITIONS_AT_ONCE", 8)
    job = make_job(adapter=adapter, compile=True, precision="bf16", max_steps=4)
    if architecture == "gpt2":
        vocabulary = load_model(job.start).config.vocab_size
        config = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=vocabulary)
        GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
        job = replace(job, start=tmp_path / "gpt2")
    strategy = make_strategy(job.settings, alone)
    task = task_of(job.store, {})
    engine.build(job, alone, strategy, task, num_rows=1)
    rows = np.array(StoredRows(job.store, "train").rows[:16]).reshape(4, 4)
    seen, lengths = [], set()
    for number, some in enumerate(rows):
        some["flags"][:, :: 9 - number] |= FIRST
        some["flags"][:, 60 - 12 * number :] &= ~np.uint8(TRAINED)
        runs = 0
        batches = micro_batches(task, some, 2)
        lengths |= {len(batch.targets) for batch in batches if isinstance(batch, TokenBatch)}
        with torch.compiler.set_stance("fail_on_recompile" if number > 1 else "default"):
            gradients(strategy, batches, 1.0, job.settings, alone)
            strategy.step(1e-3)
        seen.append(runs)
    assert len(lengths) > 4
    assert seen == [2 * len(blocks_of(strategy.module.model))] * 4


@pytest.mark.usefixtures("sound")
def test_blocks_of_many_shapes_are_compiled_only_if_the_config_says_so() -> None:
    with torch.device("meta"):
        resnet = ResNetForImageClassification(ResNetConfig(layer_type="basic", depths=[2] * 4))
        vit = ViTForImageClassification(ViTConfig())
    reason = reason_not_to_compile(Train(), resnet, 1e30, CPU, 1)
    assert reason is not None
    assert re.fullmatch(
        r"its blocks have \d+ different shapes, and each would be compiled by itself", reason
    )
    assert reason_not_to_compile(Train(compile=True), resnet, 1e30, CPU, 1) is None
    assert reason_not_to_compile(Train(), vit, 1e30, CPU, 1) is None


@pytest.mark.usefixtures("sound")
def test_an_architecture_that_names_no_blocks_is_not_compiled(llama: PreTrainedModel) -> None:
    """BERT as a decoder is one; here a Llama stands for it."""
    llama._no_split_modules = None
    reason = "transformers doesn't say which modules of a llama model are its blocks"
    assert reason_not_to_compile(Train(), llama, 1e30, CPU, 1) == reason
    with pytest.raises(UserError) as caught:
        reason_not_to_compile(Train(compile=True), llama, 1e30, CPU, 1)
    assert str(caught.value).startswith(f"train.compile: can't compile: {reason}; ")


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("processors", [1, 2, 8])
def test_a_run_of_more_than_a_minute_is_compiled(
    llama: PreTrainedModel, device: torch.device, processors: int
) -> None:
    flops = MINUTE[device] * processors
    assert reason_not_to_compile(Train(), llama, 1.01 * flops, device, processors) is None
    assert reason_not_to_compile(Train(), llama, 0.5 * flops, device, processors) == (
        "the run is too short for compiling to pay off"
    )


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("flops", [1.0, 1e30])
def test_what_the_config_says_holds_however_long_the_run(
    llama: PreTrainedModel, flops: float
) -> None:
    assert reason_not_to_compile(Train(compile=True), llama, flops, CPU, 1) is None
    assert reason_not_to_compile(Train(compile=False), llama, flops, CPU, 1) == "compile: false"


_TRY = """
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from moray.config.schema.train import Adapter, Train
from moray.errors import UserError
from moray.train.kernels import reason_not_to_compile
llama = AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=1, hidden_size=64))
print(reason_not_to_compile(Train(), llama, 1e30, torch.device("cpu"), 1))
try:
    reason_not_to_compile(Train(compile=True), llama, 1e30, torch.device("cpu"), 1)
except UserError as error:
    print(error)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "compiler",
    [None, pytest.param("#!/bin/sh\necho no Python.h >&2; exit 1\n", marks=pytest.mark.release)],
)
def test_a_compiler_that_is_missing_or_broken_is_reported_before_it_is_needed(
    compiler: str | None, tmp_path: Path
) -> None:
    if compiler:
        (tmp_path / "g++").write_text(compiler)
        (tmp_path / "g++").chmod(0o755)
    environment = os.environ | {
        "PATH": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _TRY], env=environment, capture_output=True, text=True, check=True
    )
    reported, refused = done.stdout.splitlines()
    assert reported.startswith("the compiler fails (")
    assert refused.startswith("train.compile: can't compile: the compiler fails (")
    assert refused.endswith("; set it to auto or false")


@pytest.mark.usefixtures("sound")
def test_how_a_run_is_resumed_or_logged_decides_nothing(llama: PreTrainedModel) -> None:
    for flops in (1e10, 1e14):
        reasons = {
            reason_not_to_compile(Train(save_steps=steps, max_steps=steps), llama, flops, CPU, 2)
            for steps in (1, 1000)
        }
        assert len(reasons) == 1


def test_compiled_code_is_kept_in_a_folder_that_the_compiler_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    use_cache(tmp_path / "my project")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"
    use_cache(tmp_path / "compiled")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")


class Doubled(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return 2 * value


def test_for_the_body_compiled_modules_run_as_they_were_written() -> None:
    made: list[int] = []
    ran: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        made.append(len(inputs))

        def run(*values: Tensor) -> Any:
            ran.append(len(values))
            return graph(*values)

        return run

    module = Doubled()
    module.compile(backend=backend, dynamic=False)
    with uncompiled():
        assert module(torch.ones(3)).tolist() == [2, 2, 2]
    assert (len(made), len(ran)) == (0, 0)
    module(torch.ones(2))
    assert (len(made), len(ran)) == (1, 1)
    with uncompiled():
        assert module(torch.ones(2)).tolist() == [2, 2]
        assert module(torch.ones(5)).tolist() == [2] * 5
    assert (len(made), len(ran)) == (1, 1)
    module(torch.ones(2))
    assert (len(made), len(ran)) == (1, 2)


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


@pytest.mark.long
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
    assert choose_attention(model, Train(**BF16), GPU, 64, True) == "varlen"
    for kind in ("sdpa", "eager", "flex", "varlen"):
        settings = Train(attention=kind, **BF16)
        assert choose_attention(model, settings, GPU, 64, True) == kind


@pytest.mark.usefixtures("modern")
@pytest.mark.parametrize("name", ["LFM2", "Falcon-H1", "Qwen3-Next"])
def test_a_hybrid_model_keeps_its_attention_on_a_gpu(name: str) -> None:
    """The other layers of these would need another library for the same argument."""
    model = build(HYBRID[name]())
    assert choose_attention(model, Train(**BF16), GPU, 64, True) is None
    with pytest.raises(UserError, match="varlen can't be used with this"):
        choose_attention(model, Train(attention="varlen", **BF16), GPU, 64, True)


@pytest.mark.usefixtures("modern")
def test_a_model_of_images_keeps_its_attention_on_a_gpu() -> None:
    with torch.device("meta"):
        vit = ViTForImageClassification(ViTConfig())
    assert choose_attention(vit, Train(**BF16), GPU, None, True) is None


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
    with pytest.raises(UserError, match="it computes in fp32, but the kernel only in bf16"):
        choose_attention(load_model(model_folder), settings, GPU, 64, True)


def test_an_attention_that_an_architecture_does_not_have_is_refused(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kernels._NAMES, "sdpa", "no such thing")
    with pytest.raises(UserError, match=r"^train\.attention: sdpa can't be used"):
        use_attention(load_model(model_folder), "sdpa")
