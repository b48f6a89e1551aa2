"""Adapters, held against PEFT's own loading of them and against LoRA by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import HYBRID, PACKED, UNPACKED, build
from peft import PeftModel
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.adapter import (
    add_adapter,
    leave_casts_to_autocast,
    load_adapter,
    merged,
    save_adapter,
)
from moray.model.load import load_model

TOKENS = torch.arange(48).view(2, 24)

KINDS: list[dict[str, Any]] = [
    {},
    {"rank": 2, "alpha": 3},
    {"use_rslora": True},
    {"use_dora": True},
    {"use_dora": True, "use_rslora": True},
    {"target_modules": ["q_proj", "v_proj"]},
]


@torch.no_grad()
def logits_of(model: PreTrainedModel) -> Tensor:
    model.config.use_cache = False
    logits: Tensor = model(input_ids=TOKENS).logits
    return logits


def adapted(folder: Path, adapter: Adapter) -> PreTrainedModel:
    """A model whose adapters do something."""
    model = load_model(folder)
    add_adapter(model, adapter, seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.requires_grad:
                weights += 0.1 * torch.randn_like(weights)
    return model.eval()


@pytest.mark.parametrize("settings", KINDS)
def test_adapters_add_nothing_at_first(model_folder: Path, settings: dict[str, Any]) -> None:
    model = load_model(model_folder)
    before = logits_of(model)
    add_adapter(model, Adapter(**settings), seed=0)
    torch.testing.assert_close(logits_of(model), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", KINDS)
def test_under_autocast_inputs_need_no_other_cast(
    model_folder: Path, settings: dict[str, Any]
) -> None:
    results = []
    for alone in (False, True):
        model = adapted(model_folder, Adapter(**settings))
        if alone:
            leave_casts_to_autocast(model, Adapter(**settings))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=TOKENS, labels=TOKENS).loss
        trained = [value for value in model.parameters() if value.requires_grad]
        results.append([loss, *torch.autograd.grad(loss, trained)])
    for before, after in zip(*results, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("settings", KINDS)
def test_adapters_alone_are_trained(model_folder: Path, settings: dict[str, Any]) -> None:
    model = load_model(model_folder)
    base = dict(model.named_parameters())
    add_adapter(model, Adapter(**settings), seed=0)
    added = {id(value) for value in model.parameters()} - {id(value) for value in base.values()}
    trained = {id(value) for value in model.parameters() if value.requires_grad}
    assert added == trained != set()
    # All that is trained has an effect.
    model = adapted(model_folder, Adapter(**settings))
    torch.autograd.backward(model(input_ids=TOKENS, labels=TOKENS).loss)
    for value in model.parameters():
        assert value.grad is not None or not value.requires_grad
        assert value.grad is None or value.grad.any()


def test_all_linear_layers_but_the_output_get_a_pair(model_folder: Path) -> None:
    model = adapted(model_folder, Adapter(rank=3))
    shapes = {name: value.shape for name, value in model.named_parameters() if "lora_A" in name}
    layers = {name.partition(".lora_A")[0].rpartition(".")[2] for name in shapes}
    mlp = {"gate_proj", "up_proj", "down_proj"}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj"} | mlp
    assert len(shapes) == 2 * 7
    assert {shape[0] for shape in shapes.values()} == {3}


@pytest.mark.long
@pytest.mark.parametrize("architecture", PACKED | UNPACKED | HYBRID)
def test_every_layer_with_an_adapter_is_called_as_a_layer(
    architecture: str, tmp_path: Path
) -> None:
    """Code that reads a layer's weights would leave its adapter out, which merging adds."""
    build((PACKED | UNPACKED | HYBRID)[architecture]()).save_pretrained(tmp_path / "base")
    adapter = Adapter(rank=2)
    model = adapted(tmp_path / "base", adapter)
    # Some is only read so in training.
    torch.autograd.backward(model.train()(input_ids=TOKENS, labels=TOKENS).loss)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    assert trained
    assert [name for name, value in trained.items() if value.grad is None] == []
    model.eval()
    save_adapter(model, adapter, tmp_path / "adapter", torch.float32)
    whole = merged(load_model(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logits_of(whole), logits_of(model), rtol=1e-3, atol=1e-3)


OUTPUT = "model.layers.{}.self_attn.o_proj"


def product(state: dict[str, Tensor], layer: int) -> Tensor:
    """What a layer's adapter of rank r adds to its output projection, unscaled."""
    up, down = (state[f"{OUTPUT.format(layer)}.lora_{name}.default.weight"] for name in "BA")
    return up @ down


@pytest.mark.parametrize(
    ("rslora", "scale"), [(False, 12 / 4), (True, 12 / 2)], ids=["lora", "rslora"]
)
def test_what_is_added_is_scaled_by_alpha_over_rank_or_its_root(
    model_folder: Path, rslora: bool, scale: float
) -> None:
    settings = Adapter(rank=4, alpha=12, use_rslora=rslora, target_modules=["o_proj"])
    model = adapted(model_folder, settings)
    state = model.state_dict()
    by_hand = load_model(model_folder)
    with torch.no_grad():
        for number, layer in enumerate(by_hand.get_decoder().layers):
            layer.self_attn.o_proj.weight += scale * product(state, number)
    torch.testing.assert_close(logits_of(model), logits_of(by_hand), rtol=1e-5, atol=1e-5)


def test_with_dora_magnitudes_are_trained_too(model_folder: Path) -> None:
    settings = Adapter(rank=2, alpha=2, use_dora=True, target_modules=["o_proj"])
    model = adapted(model_folder, settings)
    state = model.state_dict()
    by_hand = load_model(model_folder)
    with torch.no_grad():
        for number, layer in enumerate(by_hand.get_decoder().layers):
            magnitude = state[f"{OUTPUT.format(number)}.lora_magnitude_vector.default.weight"]
            direction = layer.self_attn.o_proj.weight + product(state, number)
            norm = direction.norm(dim=1, keepdim=True)
            layer.self_attn.o_proj.weight.copy_(magnitude.unsqueeze(1) * direction / norm)
    torch.testing.assert_close(logits_of(model), logits_of(by_hand), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", KINDS)
def test_peft_loads_what_was_saved_and_a_merged_model_says_the_same(
    model_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    adapter = Adapter(**settings)
    model = adapted(model_folder, adapter)
    expected = logits_of(model)
    assert (expected - logits_of(load_model(model_folder))).abs().max() > 0.01
    folder = tmp_path / "adapter"
    save_adapter(model, adapter, folder, torch.float32)
    loaded = PeftModel.from_pretrained(load_model(model_folder), str(folder)).eval()
    torch.testing.assert_close(logits_of(loaded), expected, rtol=0, atol=0)
    whole = merged(load_model(model_folder), folder)
    assert type(whole) is type(load_model(model_folder))
    assert whole.state_dict().keys() == load_model(model_folder).state_dict().keys()
    torch.testing.assert_close(logits_of(whole), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["Llama", "Gemma 3 with images", "Mixtral"])
def test_of_a_merged_model_the_same_weights_can_be_trained(
    architecture: str, tmp_path: Path
) -> None:
    """Of one with images, its tower can't."""
    build(PACKED[architecture]()).save_pretrained(tmp_path / "base")
    adapter = Adapter(rank=2)
    model = adapted(tmp_path / "base", adapter)
    save_adapter(model, adapter, tmp_path / "adapter", torch.float32)
    base = load_model(tmp_path / "base")
    expected = {name: weight.requires_grad for name, weight in base.named_parameters()}
    whole = merged(base, tmp_path / "adapter")
    assert {name: weight.requires_grad for name, weight in whole.named_parameters()} == expected
    assert any(expected.values())


def test_the_layers_are_listed_in_the_same_order_by_each_process(
    model_folder: Path, tmp_path: Path
) -> None:
    """PEFT holds them as a set."""
    names = ["v_proj", "down_proj", "q_proj", "up_proj", "k_proj", "gate_proj", "o_proj"]
    settings = Adapter(target_modules=names)
    save_adapter(adapted(model_folder, settings), settings, tmp_path, torch.float32)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(names)


def test_dropout_is_of_the_adapters_inputs_and_of_training_alone(model_folder: Path) -> None:
    settings = Adapter(dropout=0.5)
    model = adapted(model_folder, settings)
    quiet = adapted(model_folder, Adapter())
    assert torch.equal(logits_of(model), logits_of(quiet))
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(logits_of(model), logits_of(model))


def test_the_first_weights_follow_the_seed_and_other_random_numbers_stay(
    model_folder: Path,
) -> None:
    def made(seed: int) -> dict[str, Tensor]:
        model = load_model(model_folder)
        add_adapter(model, Adapter(), seed)
        return {name: value for name, value in model.state_dict().items() if "lora_A" in name}

    first, again, other = made(0), made(0), made(1)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not any(torch.equal(value, other[name]) for name, value in first.items())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    made(0)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("names", [["querry"], ["q_proj", "v_porj"]])
def test_layers_that_the_model_does_not_have_cost_one_line(
    model_folder: Path, names: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        add_adapter(load_model(model_folder), Adapter(target_modules=names), seed=0)
    reported = str(caught.value)
    assert reported.startswith(
        f"adapter.target_modules: got {names[-1]}, expected the name of a layer"
    )
    assert "\n" not in reported


@pytest.mark.parametrize("name", ["embed_tokens", "lm_head"])
def test_an_embedding_that_is_input_and_output_is_no_target(name: str, tmp_path: Path) -> None:
    """Merged, what was learnt for one use would change the other."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    for tied in (False, True):
        config.tie_word_embeddings = tied
        model = LlamaForCausalLM(config)
        if not tied:
            add_adapter(model, Adapter(target_modules=[name]), seed=0)
            continue
        with pytest.raises(
            UserError, match=f"got {name}, whose weights are shared by the input and output"
        ):
            add_adapter(model, Adapter(target_modules=[name]), seed=0)


def test_a_new_pooler_is_trained_and_kept_whole(tmp_path: Path) -> None:
    """BERT has its pooler in the body, and one that was a masked language model has none."""
    settings: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24}
    config = BertConfig(**settings, num_hidden_layers=1, num_attention_heads=2, num_labels=3)
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "base")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "base")
    adapter = Adapter(rank=2, target_modules=["query"])
    add_adapter(model, adapter, seed=0)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    names = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name.split(".")[1] for name in names if "lora" not in name} == {
        "pooler",
        "modules_to_save",
    }
    with torch.no_grad():
        for weight in trained:
            weight += torch.randn_like(weight)
    save_adapter(model, adapter, tmp_path / "adapter", torch.float32)
    base = BertForSequenceClassification.from_pretrained(tmp_path / "base")
    whole = merged(base, tmp_path / "adapter")
    torch.testing.assert_close(logits_of(whole.eval()), logits_of(model.eval()))


@pytest.mark.parametrize("settings", KINDS)
def test_going_on_with_an_adapter_begins_as_peft_loads_it(
    model_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    adapter = Adapter(**settings)
    save_adapter(adapted(model_folder, adapter), adapter, tmp_path / "first", torch.float32)
    model = load_model(model_folder)
    # Other random weights than those of the first one.
    add_adapter(model, adapter, seed=2)
    load_adapter(model, tmp_path / "first")
    by_peft: Any = PeftModel.from_pretrained(
        load_model(model_folder), str(tmp_path / "first"), is_trainable=True
    )
    assert torch.equal(logits_of(model), logits_of(by_peft))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {
        name.removeprefix("base_model.model.")
        for name, weight in by_peft.named_parameters()
        if weight.requires_grad
    }


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"rank": 2}, "adapter.rank: "),
        ({"target_modules": ["q_proj"]}, "lora_A.weight, and that of this run none"),
    ],
)
def test_an_adapter_of_another_shape_is_refused(
    model_folder: Path, tmp_path: Path, keys: dict[str, Any], problem: str
) -> None:
    first = Adapter(rank=4, target_modules=["q_proj", "v_proj"])
    save_adapter(adapted(model_folder, first), first, tmp_path / "first", torch.float32)
    model = load_model(model_folder)
    add_adapter(model, first.model_copy(update=keys), seed=0)
    with pytest.raises(UserError) as caught:
        load_adapter(model, tmp_path / "first")
    assert problem in str(caught.value)
