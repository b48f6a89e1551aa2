"""The points of curves."""

import pandas as pd

from moray.report.curves import curves


def test_the_curve_of_the_validation_loss_begins_before_the_first_step() -> None:
    history = pd.DataFrame(
        [
            {"run": "a", "step": 0, "start_loss": 8.25},
            {"run": "a", "step": 1, "loss": 8.0},
            {"run": "a", "step": 2, "loss": 7.5, "eval_loss": 7.75},
            {"run": "b", "step": 2, "eval_loss": 7.0},
        ]
    )
    found = curves(history, points=10)
    assert found["a"]["eval_loss"] == ([0, 2], [8.25, 7.75])
    assert found["a"]["loss"] == ([1, 2], [8.0, 7.5])
    assert found["b"] == {"eval_loss": ([2], [7.0])}
