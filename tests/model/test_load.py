"""Loading a model: what is accepted, what is never run, what packed training needs."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from architectures import PACKED, UNPACKED
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from moray.errors import UserError
from moray.model.load import check_length, convert, empty_model, load_model


@pytest.fixture
def folder(tmp_path: Path, model_folder: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


def test_weights_are_those_of_the_file(model_folder: Path) -> None:
    loaded = load_model(model_folder).state_dict()
    file = load_file(model_folder / "model.safetensors")
    assert loaded.keys() == file.keys()
    assert all(torch.equal(loaded[name], file[name]) for name in file)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_fp32_whatever_the_file_has(folder: Path, dtype: torch.dtype) -> None:
    stored = {k: v.to(dtype) for k, v in load_file(folder / "model.safetensors").items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")})
    )
    model = load_model(folder)
    assert {weights.dtype for weights in model.state_dict().values()} == {torch.float32}
    assert model.config.dtype == torch.float32
    for name, weights in model.state_dict().items():
        assert torch.equal(weights, stored[name].float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Llama", "DeepSeek-V3", "ERNIE 4.5 MoE", "gpt-oss"])
def test_weights_are_converted_as_transformers_loads_them(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    """That is, except those that the architecture keeps in fp32."""
    model = build((PACKED | UNPACKED)[name]())
    for value in model.state_dict().values():
        value.normal_()
    model.save_pretrained(tmp_path / "start")
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "start", dtype=dtype)
    converted = load_model(tmp_path / "start")
    convert(converted, dtype)
    converted.save_pretrained(tmp_path / "converted")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "converted", dtype=dtype)
    assert found.config.dtype == dtype
    for key, value in expected.state_dict().items():
        assert found.state_dict()[key].dtype == value.dtype
        assert torch.equal(found.state_dict()[key], value), key


class _Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
@pytest.mark.parametrize(
    "save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))]
)
def test_a_pickle_is_refused_and_never_run(
    folder: Path, tmp_path: Path, name: str, save: Callable[[object, Path], object]
) -> None:
    (folder / "model.safetensors").unlink()
    save({"weights": _Trap(tmp_path / "ran")}, folder / name)
    with pytest.raises(UserError) as caught:
        load_model(folder)
    assert str(caught.value).startswith(f"{folder}: can't load a causal language model")
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_is_never_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (folder / "custom.py").write_text(
        f"import pathlib\npathlib.Path({str(folder / 'ran')!r}).touch()\n"
        "from transformers import LlamaConfig as Config, LlamaForCausalLM as Model\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "custom",
        "auto_map": {"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="can't load a causal language model"):
        load_model(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", None),
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 200),
        ("config.json", None),
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "vit"}'),
        ("config.json", b'{"model_type": "not-known"}'),
    ],
)
def test_what_is_no_model_costs_one_line(folder: Path, name: str, content: bytes | None) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_model(folder)
    assert str(caught.value).startswith(f"{folder}: can't load a causal language model (")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("load", [load_model, empty_model])
def test_a_model_that_needs_another_library_is_reported_by_its_folder(
    load: Callable[[Path], PreTrainedModel], folder: Path
) -> None:
    """Attention that transformers would download from the hub, by a package we don't install."""
    config = json.loads((folder / "config.json").read_text())
    config["attn_implementation"] = "owner/attention"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError) as caught:
        load(folder)
    assert str(caught.value).startswith(
        f"{folder}: can't load a causal language model (`kernels` is "
    )


def test_missing_weights_are_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"], weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"2 weights of a llama model are missing, e\.g\. lm_head"):
        load_model(folder)


def test_weights_that_are_no_part_of_the_model_are_not_left_out(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight_scale"] = torch.ones(1)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    expected = (
        r"1 weights of a llama model aren't part of it, e\.g\. model\.layers\.0\.mlp\.up_proj"
    )
    with pytest.raises(UserError, match=expected):
        load_model(folder)


def test_embeddings_that_are_tied_and_differ_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(UserError, match="tie_word_embeddings: true, but the input and output"):
        load_model(folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_model(folder)


def _change_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize(
    ("key", "value", "number", "name", "stored", "expected"),
    [
        ("vocab_size", 310, 2, "lm_head.weight", (320, 32), (310, 32)),
        ("intermediate_size", 64, 6, "model.layers.0.mlp.down_proj.weight", (32, 48), (32, 64)),
    ],
)
def test_weights_whose_shapes_differ_from_the_config_are_named(
    folder: Path,
    key: str,
    value: int,
    number: int,
    name: str,
    stored: tuple[int, int],
    expected: tuple[int, int],
) -> None:
    _change_config(folder, **{key: value})
    with pytest.raises(UserError) as caught:
        load_model(folder)
    assert str(caught.value) == (
        f"{folder}: {number} weights have other shapes than config.json says, e.g. {name}: "
        f"{stored}, expected {expected}; use the config.json that was saved with the weights, or "
        "correct the sizes in it"
    )


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (
            "num_attention_heads",
            5,
            "Class validation error for validator 'validate_architecture': ValueError: The hidden "
            "size (32) is not a multiple of the number of attention heads (5).",
        ),
        (
            "vocab_size",
            "320",
            "Validation error for field 'vocab_size': TypeError: Field 'vocab_size' expected int",
        ),
        ("pad_token_id", 400, "Padding_idx must be within num_embeddings"),
        ("hidden_act", "swish2", "config.json has 'swish2', which transformers doesn't know"),
    ],
)
@pytest.mark.parametrize("load", [load_model, empty_model])
def test_values_that_the_architecture_does_not_take_cost_one_line(
    load: Callable[[Path], PreTrainedModel], folder: Path, key: str, value: object, problem: str
) -> None:
    _change_config(folder, **{key: value})
    with pytest.raises(UserError) as caught:
        load(folder)
    assert str(caught.value).startswith(f"{folder}: can't load a causal language model ({problem}")


def test_experts_of_which_one_is_missing_cost_one_line(tmp_path: Path) -> None:
    """transformers joins the experts of a layer."""
    build(hf.MixtralConfig(**ROTARY, num_local_experts=4)).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.0.block_sparse_moe.experts.2.w1.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError) as caught:
        load_model(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: the weights can't be joined to those of the model, since some are missing or "
        "have other shapes; use the folder of a complete causal language model"
    )


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
ROTARY = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2}

Config = Callable[[], hf.PretrainedConfig]
ARCHITECTURES: dict[str, Config] = {
    "llama": lambda: hf.LlamaConfig(**ROTARY),
    "qwen2": lambda: hf.Qwen2Config(**ROTARY),
    "mistral": lambda: hf.MistralConfig(**ROTARY, sliding_window=16),
    "gemma2": lambda: hf.Gemma2Config(**ROTARY, head_dim=8),
    "gpt2": lambda: hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt-neox": lambda: hf.GPTNeoXConfig(**SIZES, intermediate_size=48),
}


def build(config: hf.PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def described(model: PreTrainedModel) -> dict[str, tuple[torch.Size, torch.dtype, bool]]:
    """Parameters and buffers by name; of a tied pair, both are one."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: (value.shape, value.dtype, value.requires_grad) for name, value in tensors}


@pytest.mark.parametrize("architecture", ["llama", "llama, tied", "gpt2", "gemma2"])
def test_an_empty_model_has_all_that_a_loaded_one_has_but_for_the_numbers(
    architecture: str, tmp_path: Path
) -> None:
    made = ARCHITECTURES | {
        "llama, tied": lambda: hf.LlamaConfig(**ROTARY, tie_word_embeddings=True)
    }
    build(made[architecture]()).bfloat16().save_pretrained(tmp_path)
    loaded, empty = load_model(tmp_path), empty_model(tmp_path)
    assert described(empty) == described(loaded)
    assert type(empty) is type(loaded)
    assert empty.training is loaded.training is False
    tensors = [*empty.parameters(), *empty.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert torch.zeros(()).device.type == "cpu"


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_rows_longer_than_the_model_s_positions_are_refused(architecture: str) -> None:
    model = build(ARCHITECTURES[architecture]())
    check_length(model, 63)
    check_length(model, 64)
    with pytest.raises(UserError) as caught:
        check_length(model, 65)
    assert str(caught.value) == (
        "data.block_size: makes sequences of 65 tokens, expected at most 64, the model's "
        "maximum length; "
        "lower it or choose another model"
    )
