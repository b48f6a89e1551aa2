"""Fields of PEFT's config: each has an effect, and survives the export and the merged model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import PACKED, build
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.adapter import add_adapter, merged, save_adapter
from moray.model.load import load_model
from moray.train.trained import trained_of

TOKENS = torch.arange(48).view(2, 24)
STARTS = ("pissa", "pissa_niter_4", "olora")


@pytest.fixture(params=["Llama", "Mixtral"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Whose input and output embeddings are two."""
    config = PACKED[request.param]()
    config.tie_word_embeddings = False
    build(config).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@torch.no_grad()
def logits_of(model: PreTrainedModel) -> Tensor:
    logits: Tensor = model(input_ids=TOKENS, use_cache=False).logits
    return logits


def added(base: Path, **keys: Any) -> tuple[PreTrainedModel, Adapter]:
    adapter = Adapter(**{"rank": 2, **keys})
    model = load_model(base)
    add_adapter(model, adapter, seed=0)
    return model, adapter


def changed(model: PreTrainedModel) -> PreTrainedModel:
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.requires_grad:
                weights += 0.05 * torch.randn_like(weights)
    return model.eval()


ATTENTION = ["q_proj", "v_proj"]
FIELDS: dict[str, dict[str, Any]] = {
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal", "target_modules": ATTENTION},
    **{name: {"init_lora_weights": name, "target_modules": ATTENTION} for name in STARTS},
    "rslora": {"init_lora_weights": "pissa", "use_rslora": True, "target_modules": ATTENTION},
    "patterns of pissa": {
        "init_lora_weights": "pissa",
        "rank_pattern": {"q_proj": 4},
        "alpha_pattern": {"v_proj": 3.0},
        "target_modules": ATTENTION,
    },
    "modules": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "blocks": {"layers_to_transform": [1], "target_modules": ATTENTION},
    "ranks": {"rank_pattern": {"q_proj": 3, r"layers\.1\.self_attn\.v_proj": 5}},
    "alphas": {"alpha_pattern": {"q_proj": 64.0}},
    "tokens": {"trainable_token_indices": [3, 5]},
    "expression": {"target_modules": r".*layers\.1\.self_attn\.(q|o)_proj"},
}


@pytest.mark.parametrize("field", FIELDS)
def test_it_has_an_effect_and_is_that_of_peft_alone_and_of_the_merged_model(
    field: str, base: Path, tmp_path: Path
) -> None:
    model, adapter = added(base, **FIELDS[field])
    # All start with what the base says.
    before = logits_of(load_model(base))
    torch.testing.assert_close(logits_of(model.eval()), before, rtol=1e-4, atol=1e-4)
    usual, _ = added(base, **{"target_modules": FIELDS[field].get("target_modules", "all-linear")})
    if field == "expression":
        usual, _ = added(base)

    def trained(one: PreTrainedModel) -> dict[str, Tensor]:
        return {name: value for name, value in one.named_parameters() if value.requires_grad}

    ours, theirs = trained(model), trained(usual)
    same = ours.keys() == theirs.keys() and all(
        ours[name].shape == theirs[name].shape and torch.equal(ours[name], theirs[name])
        for name in ours
    )
    assert not same or field == "alphas"
    expected = logits_of(changed(model))
    assert (expected - before).abs().max() > 0.01
    if field == "alphas":
        assert not torch.equal(expected, logits_of(changed(usual)))
    save_adapter(model, adapter, tmp_path / "adapter", torch.float32)
    alone: Any = PeftModel.from_pretrained(load_model(base), tmp_path / "adapter")
    torch.testing.assert_close(logits_of(alone.eval()), expected, rtol=1e-4, atol=1e-4)
    whole = merged(load_model(base), tmp_path / "adapter")
    assert whole.state_dict().keys() == load_model(base).state_dict().keys()
    torch.testing.assert_close(logits_of(whole), expected, rtol=1e-4, atol=1e-4)


def test_which_layers_are_trained_is_counted(base: Path) -> None:
    model, adapter = added(base, target_modules=["q_proj"], modules_to_save=["lm_head"])
    assert trained_of(model, adapter).layers == {"q_proj": (2, 256), "lm_head": (1, 320 * 32)}
    model, adapter = added(base, target_modules=["q_proj"], layers_to_transform=[1])
    assert trained_of(model, adapter).layers == {"q_proj": (1, 128)}
    model, adapter = added(base, target_modules=r".*\.1\.self_attn\.[qk]_proj")
    assert trained_of(model, adapter).layers == {"q_proj": (1, 128), "k_proj": (1, 96)}


def test_parameters_can_be_named(tmp_path: Path) -> None:
    build(PACKED["Mixtral"]()).save_pretrained(tmp_path)
    keys = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]}
    model, adapter = added(tmp_path, **keys)
    assert trained_of(model, adapter).layers.keys() == {"q_proj", "experts.down_proj"}


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"modules_to_save": ["lm_hed"]}, "modules_to_save: got lm_hed, expected the name of a m"),
        ({"target_parameters": ["experts.up"]}, "target_parameters: got experts.up, expected the"),
        ({"rank_pattern": {"q_prj": 4}}, "rank_pattern: got q_prj, expected the name of a layer"),
        ({"alpha_pattern": {"q_prj": 4}}, "alpha_pattern: got q_prj, expected the name of a lay"),
        (
            {"layers_to_transform": [2], "target_modules": ATTENTION},
            "layers_to_transform: got 2, expected at most 1; correct",
        ),
        ({"target_modules": "q_prj"}, "target_modules: got q_prj, expected an expression for"),
    ],
)
def test_names_of_nothing_are_refused(keys: dict[str, Any], line: str, base: Path) -> None:
    with pytest.raises(UserError) as caught:
        added(base, **keys)
    assert str(caught.value).startswith(f"adapter.{line}")


def test_what_cannot_be_honoured_is_refused_with_the_reason(tmp_path: Path) -> None:
    for name in ("loftq", "eva", "corda", "lora_ga"):
        with pytest.raises(ValueError, match=f"got {name}, which begins from .* expected gaus"):
            Adapter(init_lora_weights=name)
    with pytest.raises(ValueError, match="pissa can't be combined with use_dora; remove one"):
        Adapter(init_lora_weights="pissa", use_dora=True)
    with pytest.raises(ValueError, match="olora can't be combined with quantize_base; remove one"):
        Adapter(init_lora_weights="olora", quantize_base="4bit")
    with pytest.raises(ValueError, match="expected a list of names; name the layers"):
        Adapter(layers_to_transform=[1])
    with pytest.raises(ValueError, match="orthogonal needs even ranks, got"):
        Adapter(init_lora_weights="orthogonal", rank=3)
    build(PACKED["Mixtral"]()).save_pretrained(tmp_path)
    build(PACKED["GLM-4-MoE"]()).save_pretrained(tmp_path / "shared")
    with pytest.raises(UserError, match=r"^adapter\.target_modules: got .*, which has .*gate_pr"):
        added(tmp_path / "shared", target_modules=r".*\.1\..*\.gate_proj")
    with pytest.raises(UserError, match=r"^adapter\.init_lora_weights: can't be used with the exp"):
        added(tmp_path, init_lora_weights="pissa")
    tied = PACKED["Llama"]()
    tied.tie_word_embeddings = True
    build(tied).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"^adapter\.modules_to_save: got embed_tokens, whose wei"):
        added(tmp_path, modules_to_save=["embed_tokens"])
