"""The plans at the heads of `config/recipes`, made again from their models' published shapes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from project import ROOT
from typer.testing import CliRunner

from moray.cli import app

_QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
}
_QWEN3_600M = _QWEN3 | {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "tie_word_embeddings": True,
}
SHAPES: dict[str, dict[str, Any]] = {
    "HuggingFaceTB/SmolLM2-135M": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-0.6B": _QWEN3_600M,
    "Qwen/Qwen3-0.6B-Base": _QWEN3_600M,
    "Qwen/Qwen3-8B": _QWEN3
    | {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "meta-llama/Llama-3.2-1B": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
    "google/gemma-3-4b-it": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "vocab_size": 262_208,
            "hidden_size": 2560,
            "intermediate_size": 10_240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 1024,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 896,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
}
PLANNED = [
    file for file in sorted((ROOT / "config/recipes").glob("*.yaml")) if file.stem != "vit-images"
]


@pytest.mark.release
@pytest.mark.parametrize("recipe", PLANNED, ids=lambda file: file.stem)
def test_the_plan_at_the_head_is_that_of_today(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load(recipe.read_text())
    (model,) = config["models"].values()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(SHAPES[model["repo_id"]]))
    # The shape alone is read.
    monkeypatch.setattr(
        "moray.extras.memory_plan.start._folder", lambda *arguments: tmp_path / "model"
    )
    monkeypatch.setattr("moray.machine.gpus", list)
    monkeypatch.chdir(ROOT)
    head = [
        line.removeprefix("#").strip() for line in recipe.read_text().split("\n\n")[0].split("\n")
    ]
    (command,) = (line for line in head if line.startswith("moray plan "))
    said = CliRunner().invoke(app, command.split()[1:]).output
    figures = [line.strip() for line in said.splitlines() if line.endswith("GB") or " GB: " in line]
    assert figures == [line for line in head if line in figures], said
    assert f"{said.partition(';')[0]};" in head
