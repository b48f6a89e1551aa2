"""What rounding leaves of a training."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from moray.config.schema.train import Adapter
from moray.model.adapter import add_adapter, merged, save_adapter
from moray.tasks.language.rounding import share_unchanged


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24}
    config = LlamaConfig(**sizes, num_hidden_layers=8, num_attention_heads=2)
    folder = tmp_path_factory.mktemp("start")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def matrices(folder: Path, dtype: torch.dtype) -> torch.Tensor:
    """All weights of the matrices in blocks, one after the other."""
    state = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    names = [name for name in state if ".layers." in name and state[name].ndim == 2]
    return torch.cat([state[name].flatten() for name in names]).to(dtype)


@pytest.mark.parametrize("step", [1e-5, 0.02])
@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "an adapter"])
def test_the_share_is_that_of_weights_which_rounding_puts_back(
    start: Path, tmp_path: Path, adapted: bool, step: float
) -> None:
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    if adapted:
        settings = Adapter(rank=2, target_modules="all-linear")
        add_adapter(model, settings, 0)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data.fill_(step)
        save_adapter(model, settings, tmp_path / "adapter", torch.float32)
        model = merged(AutoModelForCausalLM.from_pretrained(start), tmp_path / "adapter")
    else:
        for weight in model.parameters():
            weight.data *= 1 + step
    dtype = torch.bfloat16
    model.to(dtype).save_pretrained(tmp_path)
    expected = (matrices(tmp_path, dtype) == matrices(start, dtype)).double().mean().item()
    assert (expected > 0.5) == (step < 1e-3), "the steps are lost, or kept"
    # Of the 56 matrices, every seventh one is looked at.
    assert share_unchanged(tmp_path, start, dtype) == pytest.approx(expected, abs=0.05)


def test_an_adapter_on_two_layers_counts_there_alone(start: Path, tmp_path: Path) -> None:
    settings = Adapter(rank=2, target_modules=["q_proj"])
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    add_adapter(model, settings, 0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(1.0)
    save_adapter(model, settings, tmp_path / "adapter", torch.float32)
    whole = merged(AutoModelForCausalLM.from_pretrained(start), tmp_path / "adapter")
    whole.to(torch.bfloat16).save_pretrained(tmp_path)
    found = share_unchanged(tmp_path, start, torch.bfloat16)
    assert found is not None
    assert found < 0.05, "most matrices have no adapter, and are those of the start"
