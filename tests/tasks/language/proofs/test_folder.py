"""Faults planted into base models, and what transformers reads back."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moray.errors import UserError
from moray.model.obtain import copy_folder
from moray.proofs.comparison import read_proof
from moray.stages.base_model import base_model
from moray.tasks.language import base_model as base_model_text
from moray.tasks.language.base_model import set_eos_token


def test_what_is_read_back_from_a_copied_model_is_recorded(
    model_folder: Path, tmp_path: Path
) -> None:
    cfg = {"source": "path", "path": str(model_folder), "new_tokens": ["<|x|>", "<|y|>"]}
    base_model(tmp_path / "out", cfg)
    found = {one["what"]: one for one in read_proof(tmp_path / "out")}
    assert all(one["holds"] for one in found.values())
    assert found["number of tokens in each new token"]["plain"] == [1, 1]
    assert found["loss of a text"]["here"] == pytest.approx(
        found["loss of a text"]["plain"], rel=1e-5
    )


def test_a_stop_token_that_transformers_does_not_read_back_is_refused(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(folder: Path, *others: Any) -> None:
        before = (folder / "tokenizer_config.json").read_bytes()
        set_eos_token(folder, *others)
        (folder / "tokenizer_config.json").write_bytes(before)

    monkeypatch.setattr(base_model_text, "set_eos_token", stale)
    cfg = {"source": "path", "path": str(model_folder), "eos_token": "<|x|>"}
    with pytest.raises(UserError, match=r"in stop token: .*, transformers .*: <\|x\|>"):
        base_model(tmp_path / "out", cfg | {"new_tokens": ["<|x|>"]})
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_those_of_the_source_are_refused(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(source: Path, target: Path) -> None:
        copy_folder(source, target)
        file = target / "model.safetensors"
        weights = load_file(file)
        weights["lm_head.weight"] *= 1.05
        save_file(weights, file, {"format": "pt"})

    monkeypatch.setattr(base_model_text, "copy_folder", scaled)
    with pytest.raises(UserError, match="in loss of a text: "):
        base_model(tmp_path / "out", {"source": "path", "path": str(model_folder)})


def test_scales_of_fp8_that_are_left_out_are_refused(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copytree(model_folder, tmp_path / "source"))
    file, config = source / "model.safetensors", source / "config.json"
    weights = load_file(file)
    stored: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        if "_proj" in name:
            scale = weight.abs().max() / 448
            stored |= {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}
    save_file(weights | stored, file, {"format": "pt"})
    quantization = {"quant_method": "fp8", "weight_block_size": None}
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"quantization_config": quantization})
    )

    def without_scales(folder: Path, method: str) -> None:
        plain = {
            name: weight.float()
            for name, weight in load_file(folder / "model.safetensors").items()
            if not name.endswith("_scale_inv")
        }
        save_file(plain, folder / "model.safetensors", {"format": "pt"})
        shutil.copy(model_folder / "config.json", folder)

    monkeypatch.setattr(base_model_text, "dequantize", without_scales)
    with pytest.raises(UserError, match=r"in norm of model\.layers\.0\..*_proj\.weight: "):
        base_model(tmp_path / "out", {"source": "path", "path": str(source)})
