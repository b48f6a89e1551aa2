"""Shapes that are known before a model is loaded, against those of the model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma3Config,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from moray.config.schema.models import ScratchModel
from moray.errors import UserError
from moray.model.folder import stored_dtype
from moray.model.load import load_model, longest_sequence
from moray.model.shapes import (
    layers_of,
    llama_shapes,
    num_adapter_parameters,
    num_parameters,
    positions_in,
    shapes_in,
)
from moray.tasks.language.scratch import save_llama

# Each changes what another leaves as it is.
CONFIGS: dict[str, dict[str, Any]] = {
    "untied, fewer key heads": {},
    "tied": {"tie_word_embeddings": True},
    "as many key heads": {"num_key_value_heads": None, "num_hidden_layers": 3},
    "one key head, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "narrow inside": {"hidden_size": 48, "intermediate_size": 20, "num_hidden_layers": 1},
}


@pytest.fixture(scope="module", params=CONFIGS)
def cfg(
    request: pytest.FixtureRequest, scratch: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> dict[str, Any]:
    return {
        **scratch,
        "tokenizer": {"train_on": "texts", "vocab_size": len(tokenizer)},
        **CONFIGS[request.param],
    }


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory,
    cfg: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast,
) -> Path:
    folder = tmp_path_factory.mktemp("shapes") / "model"
    save_llama(folder, tokenizer, cfg)
    return folder


def shapes_of(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Of what is trained; a matrix that is input and output embedding in one is there once."""
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def test_the_shapes_of_a_folder_are_those_of_its_model(folder: Path) -> None:
    model = load_model(folder)
    assert shapes_in(folder) == shapes_of(model)
    assert num_parameters(shapes_in(folder)) == model.num_parameters()


def test_the_shapes_of_a_model_from_scratch_are_known_before_it_is_there(
    folder: Path, cfg: dict[str, Any]
) -> None:
    shapes, model = llama_shapes(ScratchModel(**cfg)), load_model(folder)
    assert sorted(shapes.values()) == sorted(shapes_of(model).values())
    assert num_parameters(shapes) == model.num_parameters()


def test_adapters_have_as_many_parameters_as_peft_gives_them(
    folder: Path, cfg: dict[str, Any]
) -> None:
    for rank in (1, 8):
        count = num_of_adapters(load_model(folder), rank)
        assert num_adapter_parameters(shapes_in(folder), rank) == count, rank
        assert num_adapter_parameters(llama_shapes(ScratchModel(**cfg)), rank) == count, rank


def num_of_adapters(model: PreTrainedModel, rank: int) -> int:
    """By PEFT, of all linear layers."""
    config = LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM")
    whole: Any = get_peft_model(model, config)
    return sum(value.numel() for value in whole.parameters() if value.requires_grad)


def test_embeddings_go_by_other_names_in_other_families(tmp_path: Path) -> None:
    sizes = {"vocab_size": 300, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    model.save_pretrained(tmp_path)
    shapes = shapes_in(tmp_path)
    assert num_parameters(shapes) == model.num_parameters()
    assert num_adapter_parameters(shapes, 4) == num_of_adapters(model, 4)


def test_weights_in_several_files_are_put_together(tmp_path: Path, model_folder: Path) -> None:
    model = load_model(model_folder)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert shapes_in(tmp_path) == shapes_of(model)


def test_the_same_weights_in_a_file_for_other_libraries_do_not_count(
    model_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    before = shapes_in(folder)
    save_file(
        {"layers.0.attention.wq.weight": torch.zeros(9, 9)}, folder / "consolidated.safetensors"
    )
    assert shapes_in(folder) == before == shapes_of(LlamaForCausalLM.from_pretrained(folder))


def test_weights_beside_those_that_transformers_loads_do_not_count(
    model_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    before = shapes_in(folder)
    halves = {"lm_head.weight": torch.zeros(9, 9, dtype=torch.float16)}
    save_file(halves, folder / "model.fp16.safetensors")
    save_file(halves, folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert shapes_in(folder) == before == shapes_of(LlamaForCausalLM.from_pretrained(folder))
    assert stored_dtype(folder) == torch.float32
    (folder / "model.safetensors").unlink()
    assert shapes_in(folder) == {"lm_head.weight": (9, 9)}
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match=r"index.json: can't read the index of the weights"):
        shapes_in(folder)


def test_what_is_kept_in_fewer_bits_has_the_same_shapes(tmp_path: Path) -> None:
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    weights = {str(kind): torch.zeros(3, 5, dtype=kind) for kind in kinds}
    save_file(weights, tmp_path / "model.safetensors")
    assert shapes_in(tmp_path) == {str(kind): (3, 5) for kind in kinds}


def test_a_folder_without_weights_has_no_shapes(tmp_path: Path) -> None:
    assert shapes_in(tmp_path) == shapes_in(tmp_path / "missing") == {}


@pytest.mark.parametrize("size", [0, 4, 1000, None])
def test_weights_that_are_cut_off_or_gone_cost_one_line(
    tmp_path: Path, model_folder: Path, size: int | None
) -> None:
    file = tmp_path / "model.safetensors"
    if size is None:
        file.symlink_to(tmp_path / "gone")
    else:
        file.write_bytes((model_folder / "model.safetensors").read_bytes()[:size])
    with pytest.raises(UserError, match=rf"^{file}: can't read the weights \("):
        shapes_in(tmp_path)


SIZES = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(max_position_embeddings=77, **SIZES),
        GPT2Config(n_positions=77),
        Gemma3Config(text_config={"max_position_embeddings": 77, **SIZES}),
        BloomConfig(),
    ],
    ids=lambda config: config.model_type,
)
def test_the_longest_row_is_that_of_the_config_as_transformers_reads_it(
    config: PreTrainedConfig, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    expected = getattr(config.get_text_config(), "max_position_embeddings", None)
    assert positions_in(tmp_path / "config.json") == expected
    assert expected == (None if config.model_type == "bloom" else 77)


@pytest.mark.parametrize("nested", [False, True])
def test_rows_are_no_longer_than_what_longrope_treats_alike(nested: bool, tmp_path: Path) -> None:
    """Positions beyond change the rotation of all others, as transformers computes it."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    config = Phi3Config(
        **SIZES | {"intermediate_size": 48, "pad_token_id": 0},
        max_position_embeddings=256,
        original_max_position_embeddings=32,
        rope_parameters={**rope, "rope_theta": 10000.0}
        | ({"original_max_position_embeddings": 32} if nested else {}),
    )
    config.save_pretrained(tmp_path)
    longest = positions_in(tmp_path / "config.json")
    assert longest == longest_sequence(config) == 32
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    document = torch.arange(10).unsqueeze(0)

    def logits(others: int) -> torch.Tensor:
        tokens = torch.cat([document, torch.arange(others).unsqueeze(0)], 1)
        positions = torch.cat([torch.arange(10), torch.arange(others)]).unsqueeze(0)
        with torch.no_grad():
            found = model(tokens, position_ids=positions, use_cache=False)
        logits: torch.Tensor = found.logits[:, :10]
        return logits

    alone = logits(0)
    torch.testing.assert_close(logits(longest), alone)
    assert (logits(longest + 1) - alone).abs().max() > 1e-4


@pytest.mark.parametrize("content", ["", "[1]", '{"n_positions": "many"}'])
def test_a_config_that_cannot_be_read_costs_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json: can't be read as a model config"):
        positions_in(tmp_path / "config.json")


def test_layers_are_those_of_the_model(folder: Path, cfg: dict[str, Any]) -> None:
    with_weights = {
        name.rpartition(".")[2]
        for name, module in load_model(folder).named_modules()
        if any(True for _ in module.parameters(recurse=False))
    } - ({"lm_head"} if cfg["tie_word_embeddings"] else set())
    assert layers_of(shapes_in(folder)) == with_weights
    assert layers_of(llama_shapes(ScratchModel(**cfg))) == with_weights
