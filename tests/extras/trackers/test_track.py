"""Finished runs, sent to trackers."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from deployment.daemons import free_ports
from fleet import until
from trackers import READERS, environment, in_mlflow, in_tensorboard, wandb_records

from moray.errors import ConfigError
from moray.provenance.manifest import write_manifest
from moray.stages.track import track
from moray.train.history import History


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, as its stages leave it."""
    monkeypatch.chdir(tmp_path)
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "results/runs/tuned"
    (folder / "model").mkdir(parents=True)
    history = History(folder, first_step=0)
    for step in range(1, 9):
        history.append(step=step, num_steps=8, loss=1 / step)
    record = {"run": "tuned", "id": "0123456789ab", "train": {"seed": 3}, "steps": 8, "seconds": 1}
    score = {"value": 2.0, "low": 1.5, "high": 2.5}
    scores = {"confidence": 0.95, "base": {"loss": score}, "tuned": {"loss": score}}
    (folder / "train.json").write_text(json.dumps(record))
    (folder / "eval.json").write_text(json.dumps(scores))
    sample = {"prompt": "def f():", "reference": "1", "base": "2", "tuned": "3"}
    (folder / "samples.jsonl").write_text(f"{json.dumps(sample)}\n" * 2)
    figures = {"base": {"acc,strict-match": score}, "tuned": {"acc,strict-match": score}}
    (folder / "benchmarks.json").write_text(json.dumps({"tasks": {"words": figures}}))
    (folder / "model/lineage.json").write_text("{}")
    write_manifest(folder / "model")
    return folder


def tracked(folder: Path, *trackers: str) -> dict[str, Any]:
    files = ("train.json", "history.jsonl", "eval.json", "samples.jsonl", "model", "tracked.json")
    train, history, scores, samples, model, output = (folder / name for name in files)
    benchmarks = [*folder.glob("benchmarks.json")]
    cfg = {"trackers": list(trackers)}
    track(train, history, scores, [samples], benchmarks, model, output, cfg)
    record: dict[str, Any] = json.loads((folder / "tracked.json").read_text())
    return record


EXPECTED: list[Any] = [(step, pytest.approx(1 / step)) for step in range(1, 9)]


def test_trackers_have_a_run_with_what_came_of_it(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for _ in range(2):
        assert tracked(finished, "tensorboard")["trackers"] == ["tensorboard"]
        assert in_tensorboard(tmp_path, "loss") == EXPECTED
        assert in_tensorboard(tmp_path, "test/tuned/loss_high") == [(8, 2.5)]
        name = "benchmarks/words/base/acc/strict-match"
        assert in_tensorboard(tmp_path, name) == [(8, 2.0)]


@pytest.mark.long
def test_each_tracker_has_every_step_and_score_once_however_often_it_is_sent(
    finished: Path, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    for _ in range(2):
        tracked(finished, *READERS)
    for read in READERS.values():
        assert read(tmp_path, "loss") == EXPECTED
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("moray").experiment_id])
    assert run.data.params == {"train.seed": "3"}
    assert run.data.metrics["test/base/loss_low"] == 1.5
    assert run.data.metrics["benchmarks/words/tuned/acc/strict-match_high"] == 2.5
    assert len(client.get_metric_history(run.info.run_id, "test/base/loss")) == 1
    assert len(run.data.tags["sha256/model/lineage.json"]) == 64
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"eval.json", "samples.jsonl", "benchmarks.json", "lineage.json"}
    in_order = wandb_records(tmp_path)
    summary = {
        key: value
        for record in in_order
        if record["type"] == "summary"
        for key, value in record["summary"]["update"].items()
    }
    assert (summary["test/base/loss_low"], summary["test/tuned/loss_high"]) == (1.5, 2.5)
    (artifact,) = (each["artifact"] for each in in_order if each["type"] == "artifact")
    kept = {entry["path"] for entry in artifact["manifest"]["contents"]}
    assert kept == files | {"samples.table.json"}
    assert len(json.loads(artifact["metadata"])["sha256"]["model/lineage.json"]) == 64
    assert in_order[-1]["exit"]["exit_code"] == 0


@pytest.mark.release
def test_a_server_of_mlflow_has_a_run_with_what_came_of_it(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    store = environment(tmp_path)["MLFLOW_TRACKING_URI"]
    command = ["mlflow", "server", "--backend-store-uri", store, "--port", str(port)]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with subprocess.Popen([*command, "--workers", "1"], cwd=tmp_path) as server:
        try:
            until(lambda: server.poll() is not None or answers(port))
            for _ in range(2):
                tracked(finished, "mlflow")
                assert in_mlflow(tmp_path, "loss") == EXPECTED
        finally:
            server.terminate()
    assert len(list(tmp_path.rglob("mlartifacts/**/eval.json"))) == 1


def answers(port: int) -> bool:
    with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/health") as answer:
        return bool(answer.status == 200)
    return False


@pytest.mark.long
def test_a_tracker_that_is_down_costs_one_line_and_the_others_nothing(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ConfigError) as raised:
        tracked(finished, "mlflow", "tensorboard")
    (line,) = str(raised.value).splitlines()
    assert line.startswith("runs.tuned.tracking: not all metrics reached mlflow: ")
    assert not (finished / "tracked.json").exists()
    assert in_tensorboard(tmp_path, "loss") == EXPECTED
