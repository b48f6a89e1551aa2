"""Configs of axolotl and LLaMA-Factory, and what becomes of them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from moray.config.load import load_experiment
from moray.errors import UserError
from moray.extras.importing.convert import convert

AXOLOTL: dict[str, Any] = {
    "base_model": "owner/model",
    "datasets": [{"path": "owner/rows", "type": "chat_template", "split": "train[:20%]"}],
    "val_set_size": 0.1,
    "sequence_len": 512,
    "sample_packing": True,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_epochs": 3,
    "learning_rate": "2e-5",
    "output_dir": "./out",
}
LLAMA_FACTORY: dict[str, Any] = {
    "model_name_or_path": "owner/model",
    "stage": "sft",
    "dataset": "notes",
    "cutoff_len": 512,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": True,
}


def written(config: dict[str, Any]) -> Path:
    file = Path("theirs.yaml")
    file.write_text(yaml.safe_dump(config))
    return file


def imported(config: dict[str, Any], gpus: int = 1) -> dict[str, Any]:
    """The overlay; with revisions filled in, it is a sound config."""
    text = convert(written(config), gpus)
    overlay: dict[str, Any] = yaml.safe_load(text)
    load_experiment(yaml.safe_load(text.replace("FILL-IN", "a" * 40)))
    return overlay


def at(overlay: dict[str, Any], path: str) -> Any:
    found: Any = overlay["runs"]["theirs"]
    for key in path.split("."):
        found = found[key]
    return found


def refusals(config: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        convert(written(config))
    assert "\n" not in str(caught.value)
    return str(caught.value)
