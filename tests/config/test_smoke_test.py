"""The short keys of the smoke test's config."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from small_config import config_with

from moray.config.load import load_experiment, with_short_keys_resolved
from moray.config.schema.experiment import SMOKE_TEST_RUN
from moray.errors import ConfigError

OVERLAY = Path(__file__).parents[2] / "config/smoke-test.yaml"


def loaded(**given: Any) -> Any:
    overlay = yaml.safe_load(OVERLAY.read_text())
    return load_experiment(with_short_keys_resolved(overlay | given))


def test_keys_of_the_command_line_decide_over_size_workers_and_address() -> None:
    experiment = loaded(size_gb=2, workers=3, address="head:6379")
    assert list(experiment.runs) == [SMOKE_TEST_RUN]
    ray = experiment.runs[SMOKE_TEST_RUN].ray
    assert (ray.num_workers, ray.address) == (3, "head:6379")
    assert experiment.datasets["made-up"].size_gb == 2


def test_without_them_it_is_small_and_local() -> None:
    ray = loaded().runs[SMOKE_TEST_RUN].ray
    assert (ray.num_workers, ray.address) == (2, "local")


def test_a_value_that_is_wrong_costs_a_line() -> None:
    with pytest.raises(ConfigError, match=r"num_workers: got 0, expected"):
        loaded(workers=0)


def test_other_configs_have_no_such_keys() -> None:
    with pytest.raises(ConfigError, match=r"^size_gb: unknown key; "):
        load_experiment(with_short_keys_resolved({**config_with({}), "size_gb": 1}))


def test_a_smoke_test_needs_a_folder() -> None:
    overlay = yaml.safe_load(OVERLAY.read_text())
    overlay["defaults"]["ray"]["storage_path"] = "s3://bucket/prefix"
    with pytest.raises(ConfigError, match=r"^runs\.smoke-test\.ray\.storage_path: got s3://"):
        load_experiment(overlay)
