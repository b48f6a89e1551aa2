"""A small config, and a way to change it by dotted paths."""

from collections.abc import Mapping
from typing import Any

import yaml

_CONFIG = """
datasets:
  modules: {source: python-stdlib}
  functions: {source: python-stdlib, format: prompt-completion}
  notes: {source: files, path: "notes/*.txt"}
models:
  tiny: {source: scratch, tokenizer: {train_on: modules}}
  folder: {source: path, path: models/folder}
defaults:
  data: {block_size: 64}
  train: {learning_rate: 1e-3, max_steps: 10}
runs:
  base: {model: tiny, dataset: modules}
  tuned: {model: {run: base}, dataset: functions, train: {max_steps: 20}}
"""


def config_with(values: Mapping[str, Any]) -> dict[str, Any]:
    """The config with these values at these dotted paths; mappings on the way are made."""
    config: dict[str, Any] = yaml.safe_load(_CONFIG)
    for path, value in values.items():
        *parents, key = path.split(".")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = value
    return config
