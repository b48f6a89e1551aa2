"""Event files, as TensorBoard's own reader sees them."""

from pathlib import Path

import pytest

from moray.tracking.interface import Results, TrackedRun

pytest.importorskip("tensorboard")

RUN = TrackedRun("tuned", "0123456789ab", {"train": {"learning_rate": 1e-3}})


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_config_samples_and_digests_are_shown_as_they_are() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from moray.extras.tensorboard.tracker import open_run

    samples = [{"prompt": "<script>\n", "tuned": "a | b"}, {"prompt": "def f():", "tuned": "x"}]
    with open_run(RUN) as tracker:
        tracker.add_results(Results(8, {"test/tuned/loss": 2.0}, samples, {"eval.json": "ab"}))
    viewer = EventAccumulator(f"results/tensorboard/{RUN.name}-{RUN.id}", {"tensors": 0})
    viewer.Reload()
    texts = {
        name: [event.tensor_proto.string_val[0].decode() for event in viewer.Tensors(name)]
        for name in ("config", "samples", "sha256")
    }
    assert '"learning_rate": 0.001' in texts["config"][0]
    assert texts["samples"][0] == "**prompt**\n\n    <script>\n\n\n**tuned**\n\n    a | b\n"
    assert len(texts["samples"]) == 2
    assert texts["sha256"] == ["    ab  eval.json\n"]
    assert [event.value for event in viewer.Scalars("test/tuned/loss")] == [2.0]
