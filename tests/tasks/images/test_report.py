"""What the report says of a run on images."""

import json
from pathlib import Path

from made_up_results import write_run
from pages import Parsed, runs_in

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Augmentation
from moray.report.page import render
from moray.results import load

PREDICTION = {
    "image": 3,
    "label": "cat",
    "base": "dog",
    "base_probability": 0.5,
    "tuned": "cat",
    "tuned_probability": 0.9,
}


def test_a_matrix_and_predictions_of_images_are_shown(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path,
        "a",
        samples=[PREDICTION],
        sections={"augmentation": result_keys(Augmentation())},
    )
    scores = json.loads((folder / "eval.json").read_text())
    scores |= {
        "label_names": ["cat", "dog"],
        "by_class": {"tuned": {"confusion": [[7, 1], [2, 5]]}},
    }
    (folder / "eval.json").write_text(json.dumps(scores))
    (folder / "predictions.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    details = Parsed(runs_in(render(load(tmp_path / "results")))["a"]["html"])
    words = details.text.split()
    first = words.index("cat")
    expected = ["cat", "7", "1", "dog", "2", "5", "Predictions", "Samples"]
    assert words[first : first + len(expected)] == expected
    # It asks the network for nothing.
    assert [address.partition(",")[0] for address in details.addresses()] == [
        "data:image/svg+xml;base64"
    ]
