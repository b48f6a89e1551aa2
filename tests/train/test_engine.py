"""What is done to a module before it is trained, and that it changes nothing but rounding."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import are_equal, last_tensors
from fleet import losses
from jobs import job_maker
from present import needs
from torch.autograd.graph import save_on_cpu
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.forward import compiler_options
from moray.model.size import num_quantized
from moray.storage.interface import folder_of, path_of
from moray.tasks.language.loss import TokenLoss
from moray.train.checkpoint.load import trained_model
from moray.train.engine import build, compute_deterministically
from moray.train.history import HISTORY, read_history
from moray.train.loop import train
from moray.train.memory import frozen_bytes
from moray.train.spec import RunSpec
from moray.train.strategies import make_strategy
from moray.train.task import task_of
from moray.workers.entry import Worker


def note_of(job: RunSpec) -> str:
    note: str = next(line["note"] for line in read_history(job.work / HISTORY) if "note" in line)
    return note


@pytest.mark.long
def test_gradient_checkpointing_changes_no_bit(make_job: Any, alone: Worker) -> None:
    plain, checkpointed, offloaded = (
        make_job(str(kind), gradient_checkpointing=kind) for kind in (False, True, "offload")
    )
    for job in (plain, checkpointed, offloaded):
        train(job, alone)
    assert losses(checkpointed) == losses(plain) == losses(offloaded)


def test_the_inputs_of_blocks_are_offloaded(
    make_job: Any, alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: list[torch.Tensor] = []
    saved: list[torch.Tensor] = []

    def look(block: torch.nn.Module, given: tuple[Any, ...]) -> None:
        if isinstance(block, LlamaDecoderLayer) and torch.is_grad_enabled():
            inputs.append(given[0].detach().clone())

    class Seen(save_on_cpu):
        def __init__(self, pin_memory: bool) -> None:
            super().__init__(pin_memory)
            pack = self.pack_hook

            def counted(tensor: torch.Tensor) -> Any:
                saved.append(tensor.detach().clone())
                return pack(tensor)

            self.pack_hook = counted

    monkeypatch.setattr("moray.train.engine.save_on_cpu", Seen)
    job = make_job(max_steps=1, micro_batch_size=8, gradient_checkpointing="offload")
    looking = register_module_forward_pre_hook(look)
    # Which would compute blocks too.
    train(replace(job, proofs="off"), alone)
    looking.remove()
    assert inputs
    assert all(any(torch.equal(one, other) for other in saved) for one in inputs)
    # What is inside of blocks isn't kept.
    assert len([tensor for tensor in saved if tensor.dim() == 3]) < 10


@pytest.mark.long
def test_compiled_blocks_change_nothing_but_rounding(make_job: Any, alone: Worker) -> None:
    plain, compiled = make_job("plain", compile=False), make_job("compiled", compile=True)
    assert not train(plain, alone)["compiled"]
    assert train(compiled, alone)["compiled"]
    assert note_of(plain).endswith("; blocks are not compiled: compile: false")
    assert note_of(compiled).endswith("; blocks are compiled")
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    assert losses(compiled, "eval_loss") == pytest.approx(losses(plain, "eval_loss"), rel=1e-4)
    assert list(compiled.cache.rglob("*.so"))


HELD: dict[str, dict[str, Any]] = {
    "bf16": {"base_dtype": "bf16"},
    "4bit": {"quantize_base": "4bit"},
    "4bit and bf16": {"quantize_base": "4bit", "base_dtype": "bf16"},
    "8bit and bf16": {"quantize_base": "8bit", "base_dtype": "bf16"},
}
CASES = [
    pytest.param(name, marks=needs("quantized_base") if "quantize_base" in keys else [])
    for name, keys in HELD.items()
]

LEARNING = {
    "max_steps": 50,
    "learning_rate": 5e-3,
    "precision": "auto",
    "compile": False,
    "eval_steps": 10,
    "save_steps": 50,
}


@pytest.fixture(scope="module")
def half_trained(small: Path, tmp_path_factory: pytest.TempPathFactory, alone: Worker) -> Path:
    """A model that knows something of the rows, so that adapters can bring it further."""
    folder = tmp_path_factory.mktemp("half trained")
    job = job_maker(small, folder)(**LEARNING | {"max_steps": 15})
    train(job, alone)
    last = path_of(folder_of(job.work), 15)
    trained_model(job.start, last, None).save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def losses_on_fp32(
    half_trained: Path, small: Path, tmp_path_factory: pytest.TempPathFactory, alone: Worker
) -> list[float]:
    """Of adapters beside a base in fp32."""
    job = job_maker(small, tmp_path_factory.mktemp("fp32"))(adapter=Adapter(rank=4), **LEARNING)
    train(replace(job, start=half_trained), alone)
    return losses(job)


@pytest.mark.long
@pytest.mark.parametrize("held", CASES)
def test_with_a_base_of_fewer_bits_training_goes_as_with_fp32(
    held: str, make_job: Any, alone: Worker, half_trained: Path, losses_on_fp32: list[float]
) -> None:
    job = make_job(adapter=Adapter(rank=4, **HELD[held]), **LEARNING)
    facts = train(replace(job, start=half_trained), alone)
    held_out = losses(job, "eval_loss")
    assert held_out[-1] < held_out[0]
    assert losses(job) == pytest.approx(losses_on_fp32, rel=0.02)
    assert losses(job) != losses_on_fp32
    if "bf16" in held:
        assert facts["precision"] == "bf16"
    saved = last_tensors(job)
    assert {value.dtype for value in saved.values()} == {torch.float32}


@pytest.mark.parametrize("held", CASES)
def test_what_is_trained_is_fp32_and_the_formula_says_what_is_held(
    held: str, make_job: Any, alone: Worker
) -> None:
    job = make_job(adapter=Adapter(rank=2, **HELD[held]), precision="auto")
    strategy = make_strategy(job.settings, alone)
    note = build(job, alone, strategy, task_of(job.store, {}), num_rows=1).note
    model = strategy.module
    assert isinstance(model, TokenLoss)
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    assert trained == {torch.float32}
    quantized = num_quantized(model)
    frozen = [p for p in model.parameters() if not p.requires_grad]
    other = sum(p.numel() for p in frozen if p.is_floating_point())
    held_bytes = sum(bytes_of(parameter) for parameter in frozen)
    # Constants of the code, which each weight has, count in so small a model.
    assert held_bytes == pytest.approx(frozen_bytes(job.adapter, quantized, other), rel=0.01)
    assert quantized == (20_480 if "bit" in held else 0)
    megabytes = (
        16 * sum(p.numel() for p in model.parameters() if p.requires_grad) + held_bytes
    ) / 1e6
    assert f"needs {megabytes:,.0f} MB" in note


def bytes_of(parameter: torch.Tensor) -> int:
    """Bytes of a weight and, in 4 bits, of its scales."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.nbytes
    return int(parameter.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes)


def test_adapters_leave_the_base_as_it_was(make_job: Any, alone: Worker) -> None:
    job = make_job(adapter=Adapter(rank=2))
    train(job, alone)
    saved = last_tensors(job)
    assert saved
    assert all(".lora_" in name for name in saved)


def test_the_rows_must_fit_the_model(make_job: Any, alone: Worker, small: Path) -> None:
    job = replace(make_job(), start=small / "tokens")
    with pytest.raises(UserError, match="can't load a causal language model"):
        train(job, alone)


@pytest.mark.parametrize("kind", ["use_rslora", "use_dora"])
def test_kinds_of_adapters_train(kind: str, make_job: Any, alone: Worker) -> None:
    job = make_job(adapter=Adapter(rank=2, **{kind: True}))
    train(job, alone)
    assert losses(job)[-1] < losses(job)[0]
    assert torch.isfinite(torch.tensor(losses(job))).all()


KEY = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(KEY, "")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    yield
    torch.use_deterministic_algorithms(False)


def is_deterministic() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    algorithms = torch.are_deterministic_algorithms_enabled()
    compiler = compiler_options()["deterministic"]
    settings = (algorithms, cudnn.deterministic, not cudnn.benchmark, compiler)
    return (*settings, os.environ[KEY] == ":4096:8")


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize(("kind", "expected"), [("cpu", False), ("cuda", True)])
def test_a_gpu_is_given_deterministic_algorithms_and_a_cpu_needs_none(
    kind: str, expected: bool
) -> None:
    compute_deterministically(torch.device(kind))
    assert is_deterministic() == (expected,) * 5


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("asked", [True, False])
def test_a_run_computes_so_if_the_config_asks_for_it(
    asked: bool, make_job: Any, alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[torch.device] = []
    monkeypatch.setattr("moray.train.loop.compute_deterministically", devices.append)
    train(make_job(deterministic=asked, max_steps=1), alone)
    assert devices == [alone.device] * asked


@pytest.mark.gpu
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
def test_on_a_gpu_two_runs_end_with_the_same_bytes(
    attention: str, make_job: Any, alone: Worker
) -> None:
    keys = {"deterministic": True, "attention": attention, "precision": "bf16", "compile": False}
    worker = replace(alone, device=torch.device("cuda", 0))
    ends = []
    for name in ("first", "second"):
        job = make_job(name, **keys)
        train(job, worker)
        ends.append(last_tensors(job))
    assert are_equal(*ends)
