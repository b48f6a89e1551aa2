"""Which layers get an adapter, of mixtures of experts above all."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import HYBRID, PACKED, ROUTED, UNPACKED, build
from peft import PeftModel
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.adapter import add_adapter, merged, save_adapter
from moray.model.load import load_model
from moray.model.targets import lora_config
from moray.train.trained import trained_of

KNOWN = PACKED | UNPACKED | HYBRID | ROUTED
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
# Each layer has experts.
EXPERTS = ["Qwen3-MoE", "Mixtral", "OLMoE", "MiniMax-M2", "Phi-3.5-MoE", "Granite MoE", "gpt-oss"]
# The first layer has none, the second a shared one besides.
SHARED = ["GLM-4-MoE", "DeepSeek-V3", "ERNIE 4.5 MoE"]
# Dense layers of the experts' names are beside them, and PEFT doesn't take these for linear layers.
BESIDE = ["Qwen2-MoE", "Qwen3.5-MoE", "Llama 4", "Jamba", "Gemma 4 MoE"]


def adapted(model: PreTrainedModel, adapter: Adapter) -> PreTrainedModel:
    """With adapters that do something."""
    add_adapter(model, adapter, seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.requires_grad:
                weights += 0.1 * torch.randn_like(weights)
    return model.eval()


def layers_of(model: PreTrainedModel) -> Counter[str]:
    """How often a layer of each kind has an adapter; PEFT wraps experts twice, the gate inside."""
    paths = (name.partition(".lora_A")[0] for name in model.state_dict() if ".lora_A" in name)
    kinds = Counter(".".join(path.split(".")[3:]) for path in paths)
    return Counter(
        {kind.replace("experts.base_layer", "experts.gate"): kinds[kind] for kind in kinds}
    )


@torch.no_grad()
def logits_of(model: PreTrainedModel) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.arange(48).view(2, 24), use_cache=False).logits
    return logits


@pytest.mark.parametrize("architecture", ["Qwen3-MoE", "Mixtral", "OLMoE", "MiniMax-M2"])
def test_routers_are_adapted_only_if_they_are_named(architecture: str) -> None:
    model = build(KNOWN[architecture]())
    add_adapter(model, Adapter(), seed=0)
    attention = {f"self_attn.{name}": 2 for name in ATTENTION}
    assert layers_of(model) == attention | {"mlp.experts": 2, "mlp.experts.gate": 2}
    named = build(KNOWN[architecture]())
    add_adapter(named, Adapter(target_modules=["gate", "q_proj"]), seed=0)
    assert layers_of(named) == {"self_attn.q_proj": 2, "mlp.gate": 2}


@pytest.mark.parametrize("architecture", ROUTED)
def test_routers_that_are_linear_layers_are_left_out_too(architecture: str) -> None:
    model = build(KNOWN[architecture]())
    add_adapter(model, Adapter(), seed=0)
    kinds = {kind.rpartition(".")[2] for kind in layers_of(model)}
    assert kinds
    assert not kinds & {"router", "proj", "wg", "layer", "classifier"}


@pytest.mark.parametrize("architecture", BESIDE)
def test_the_usual_list_stands_for_experts_beside_dense_layers_too(
    architecture: str, tmp_path: Path
) -> None:
    adapter = Adapter(rank=2, target_modules=[*ATTENTION, *MLP])
    build(KNOWN[architecture]()).save_pretrained(tmp_path / "base")
    model = adapted(load_model(tmp_path / "base"), adapter)
    layers = trained_of(model, adapter).layers
    assert {"experts.gate_up_proj", "experts.down_proj", *MLP} <= layers.keys()
    expected = logits_of(model)
    save_adapter(model, adapter, tmp_path / "adapter", torch.float32)
    loaded: Any = PeftModel.from_pretrained(load_model(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logits_of(loaded.eval()), expected, rtol=0, atol=0)
    whole = merged(load_model(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logits_of(whole), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("architecture", SHARED)
def test_layers_beside_the_experts_are_adapted_too(architecture: str) -> None:
    for targets in ("all-linear", ["o_proj", *MLP]):
        model = build(KNOWN[architecture]())
        add_adapter(model, Adapter.model_validate({"target_modules": targets}), seed=0)
        found = layers_of(model)
        assert {name for name in found if "attn" not in name} == {
            *(f"mlp.{name}" for name in MLP),
            *(f"mlp.shared_experts.{name}" for name in MLP),
            "mlp.experts",
            "mlp.experts.gate",
        }


@pytest.mark.parametrize("architecture", [*EXPERTS, *SHARED])
def test_the_usual_list_stands_for_the_experts_and_peft_alone_loads_what_was_saved(
    architecture: str, tmp_path: Path
) -> None:
    build(KNOWN[architecture]()).save_pretrained(tmp_path / "base")
    attention = ATTENTION[-1:] if architecture == "DeepSeek-V3" else ATTENTION
    adapter = Adapter(rank=2, target_modules=[*attention, *MLP])
    model = adapted(load_model(tmp_path / "base"), adapter)
    wide = {"mlp.experts.gate", "block_sparse_moe.experts.gate"} & layers_of(model).keys()
    assert wide
    ranks = {
        name.partition(".lora_A")[0].rpartition(".")[2]: len(value)
        for name, value in model.state_dict().items()
        if "experts" in name and "shared" not in name and ".lora_A" in name
    }
    # Of each of 4 experts; two projections lie in one tensor, whose adapter has the rank of both.
    assert ranks == {"base_layer": 4 * 2 * 2, "experts": 4 * 2}
    expected = logits_of(model)
    assert (expected - logits_of(load_model(tmp_path / "base"))).abs().max() > 0.01
    save_adapter(model, adapter, tmp_path / "adapter", torch.float32)
    loaded: Any = PeftModel.from_pretrained(load_model(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logits_of(loaded.eval()), expected, rtol=0, atol=0)
    whole = merged(load_model(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logits_of(whole), expected, rtol=1e-4, atol=1e-4)


def test_w1_w2_and_w3_are_names_of_the_same_layers() -> None:
    """As Mixtral's files have them."""
    found = []
    for names in (MLP, ["w1", "w2", "w3"]):
        model = build(KNOWN["Mixtral"]())
        add_adapter(model, Adapter(target_modules=names), seed=0)
        found.append(layers_of(model))
    assert found[0] == found[1] == {"mlp.experts": 2, "mlp.experts.gate": 2}


@pytest.mark.parametrize("targets", ["all-linear", MLP], ids=["all-linear", "list"])
def test_rslora_scales_experts_as_other_layers(targets: Any) -> None:
    model = build(KNOWN["Qwen3-MoE"]())
    add_adapter(model, Adapter(rank=4, alpha=6, use_rslora=True, target_modules=targets), seed=0)
    # Attention layers have a scale of their own, which is a number.
    found = [getattr(layer, "scaling", None) for layer in model.modules()]
    scales = [scale["default"] for scale in found if isinstance(scale, dict) and scale]
    assert len(scales) > 2
    assert scales == pytest.approx([6 / 4**0.5] * len(scales))


def test_half_of_a_tensor_of_experts_is_refused_with_its_other_half() -> None:
    with pytest.raises(UserError) as caught:
        add_adapter(build(KNOWN["Mixtral"]()), Adapter(target_modules=["up_proj"]), seed=0)
    assert str(caught.value) == (
        "adapter.target_modules: got up_proj without gate_proj, which is in the same tensors of "
        "the experts; name both"
    )


@pytest.mark.parametrize("targets", ["all-linear", [*ATTENTION, *MLP]])
@pytest.mark.parametrize("architecture", ["Qwen3-MoE", "Mixtral", "GLM-4-MoE"])
def test_dora_of_experts_is_refused_with_a_remedy_that_works(
    architecture: str, targets: Any
) -> None:
    adapter = Adapter(target_modules=targets, use_dora=True)
    with pytest.raises(UserError) as caught:
        add_adapter(build(KNOWN[architecture]()), adapter, seed=0)
    kind = build(KNOWN[architecture]()).config.model_type
    assert str(caught.value) == (
        f"adapter.use_dora: can't be used with the experts of a {kind} model, which share a "
        "tensor; set it to false, or target_modules to [k_proj, o_proj, q_proj, v_proj]"
    )
    (listed,) = re.findall(r"\[(.*)\]", caught.value.remedy)
    for remedy in ({"use_dora": False}, {"target_modules": listed.split(", ")}):
        model = build(KNOWN[architecture]())
        add_adapter(model, Adapter.model_validate(adapter.model_dump() | remedy), seed=0)


def test_layers_beside_experts_have_the_dropout_and_peft_loads_the_adapter(tmp_path: Path) -> None:
    build(KNOWN["Qwen3-MoE"]()).save_pretrained(tmp_path / "base")
    adapter = Adapter(rank=2, dropout=0.5)
    model = adapted(load_model(tmp_path / "base"), adapter)
    dropouts = [layer.p for layer in model.modules() if type(layer) is nn.Dropout]
    assert dropouts == [0.5] * 2 * len(ATTENTION)
    trained = trained_of(model, adapter)
    assert trained.facts["without_dropout"] == ["experts.gate_up_proj", "experts.down_proj"]
    assert "no dropout on experts.gate_up_proj, experts.down_proj" in str(trained)
    expected = logits_of(model)
    assert not torch.equal(logits_of(model.train()), expected)
    save_adapter(model, adapter, tmp_path / "adapter", torch.float32)
    loaded: Any = PeftModel.from_pretrained(load_model(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logits_of(loaded.eval()), expected, rtol=0, atol=0)


def test_rows_of_new_tokens_are_those_of_embeddings_that_are_not_trained_whole(
    model_folder: Path,
) -> None:
    config = AutoConfig.from_pretrained(model_folder)
    config.tie_word_embeddings, config.new_token_ids = False, [5, 6]
    model = AutoModelForCausalLM.from_config(config)

    def rows(**keys: Any) -> Any:
        return lora_config(model, Adapter(**keys)).trainable_token_indices

    assert rows() == {"embed_tokens": [5, 6], "lm_head": [5, 6]}
    assert rows(modules_to_save=["lm_head"]) == {"embed_tokens": [5, 6]}
    assert rows(modules_to_save=["embed_tokens", "lm_head"]) is None
