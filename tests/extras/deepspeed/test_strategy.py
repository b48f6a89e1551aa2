"""What DeepSpeed is given; what comes of it is compared with all other engines."""

from typing import Any

import pytest

from moray.config.schema.train import Train
from moray.extras.deepspeed.strategy import strategy
from moray.train.strategies import make_strategy
from moray.workers.entry import Worker


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"zero_stage": 1}, {"stage": 1}),
        (
            {"zero_stage": 2, "offload_optimizer": True},
            {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        ),
        (
            {"zero_stage": 3, "offload_parameters": True},
            {"stage": 3, "offload_param": {"device": "cpu"}},
        ),
    ],
)
def test_deepspeed_has_the_options_of_the_config(
    alone: Worker, keys: dict[str, Any], expected: dict[str, Any]
) -> None:
    settings = Train.model_validate({"strategy": "deepspeed", "deepspeed": keys})
    zero = strategy(settings, alone)._config()["zero_optimization"]
    named = ("stage", "offload_optimizer", "offload_param")
    assert {key: zero[key] for key in named if key in zero} == expected


def test_it_is_made_for_runs_that_name_it(alone: Worker) -> None:
    assert type(make_strategy(Train(strategy="deepspeed"), alone)) is strategy
