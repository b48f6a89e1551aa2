"""A small config, and a way to change it by dotted paths."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
import yaml

from moray.config.load import load_experiment
from moray.config.schema.experiment import Experiment
from moray.errors import ConfigError

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


# Sound entries of some sources, and keys.
HUB = {"source": "hub", "repo_id": "owner/name", "revision": "0" * 40}
URL = {"source": "url", "url": "https://host/a.csv"}
MADE_UP = {"source": "synthetic", "size_gb": 1}
TABLE = {"source": "files", "path": "x"}
ON_THE_FLY = {"tokenize": "on-the-fly"}


def config_with(values: Mapping[str, Any]) -> dict[str, Any]:
    """The config with these values at these dotted paths; mappings on the way are made."""
    config: dict[str, Any] = yaml.safe_load(_CONFIG)
    for path, value in values.items():
        *parents, key = path.split(".")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
        # A value at a path is changed by those at paths below it.
        section[key] = deepcopy(value)
    return config


def experiment_with(values: Mapping[str, Any]) -> Experiment:
    """The experiment of the config with these values."""
    return load_experiment(config_with(values))


def faults(values: Mapping[str, Any]) -> list[str]:
    """The lines that the config with these values costs; it must cost one."""
    with pytest.raises(ConfigError) as caught:
        pytest.fail(f"{values} make {experiment_with(values)}")
    return str(caught.value).splitlines()


def check_faults(values: Mapping[str, Any], *starts: str) -> None:
    """Hold the lines that the config with these values costs against their beginnings."""
    reported = faults(values)
    assert len(reported) == len(starts), (values, reported)
    assert all(map(str.startswith, reported, starts)), (values, reported)
