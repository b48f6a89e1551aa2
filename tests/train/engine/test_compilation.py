"""Whether a run is compiled, and what becomes of a model that is."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import PACKED, UNPACKED, build
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from moray.config.schema import Train
from moray.errors import UserError
from moray.model.load import empty_model
from moray.train.engine import compilation
from moray.train.engine.compilation import (
    reason_not_to_compile,
    uncompiled,
    use_cache,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
# What a core, and a data-centre GPU, does in a minute.
MINUTE = {CPU: 9e12, GPU: 6e15}


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that is known to work; what it is asked is tested below."""
    monkeypatch.setattr(compilation, "compiler_fault", lambda device: None)


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
from moray.config.schema import Train
from moray.errors import UserError
from moray.train.engine.compilation import reason_not_to_compile
llama = AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=1, hidden_size=64))
print(reason_not_to_compile(Train(), llama, 1e30, torch.device("cpu"), 1))
try:
    reason_not_to_compile(Train(compile=True), llama, 1e30, torch.device("cpu"), 1)
except UserError as error:
    print(error)
"""


@pytest.mark.long
@pytest.mark.parametrize("compiler", [None, "#!/bin/sh\necho no Python.h >&2; exit 1\n"])
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


def test_compiled_code_is_kept_where_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
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
