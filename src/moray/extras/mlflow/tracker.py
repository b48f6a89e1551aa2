"""MLflow: a run in the store that `MLFLOW_TRACKING_URI` names."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, Param, RunTag

from moray.tracking.interface import Point, Results, TrackedRun, flat

_EXPERIMENT = "moray"
_ID = "moray.id"
# Limits of MLflow.
_METRICS, _PARAMS, _TAGS, _CHARACTERS = 1000, 100, 100, 5000


@contextmanager
def open_run(run: TrackedRun) -> Iterator["MLflow"]:
    """Find a run by its id, or create it; see `Tracker`."""
    with _sole_opener():
        client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        experiment = mlflow.set_experiment(name).experiment_id
    runs = list(client.search_runs([experiment], f"tags.`{_ID}` = '{run.id}'"))
    tags = {_ID: run.id, "moray.run": run.name}
    there = runs or [client.create_run(experiment, run_name=run.name, tags=tags)]
    yield MLflow(client, there[0], run.config)


@contextmanager
def _sole_opener() -> Iterator[None]:
    """Let one process of this user at a time open an SQLite store on this machine.

    MLflow 3.17 creates the tables of a new store without a lock of its own: of two runs that start
    together, one fails, or the store can't be opened any more.
    """
    if not mlflow.get_tracking_uri().startswith("sqlite:"):
        yield
        return
    with Path(tempfile.gettempdir(), f"moray-mlflow-{os.getuid()}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class MLflow:
    """See `Tracker`.

    MLflow can't take points back. A step that is trained again, because a run was resumed from a
    checkpoint before it, keeps the point of the first time.
    """

    def __init__(self, client: Any, run: Any, config: dict[str, Any]) -> None:
        self._client, self._id = client, run.info.run_id
        self._finished = run.info.status == "FINISHED"
        self._figures: dict[str, float] = run.data.metrics
        self._last_steps = {
            name: max(point.step for point in client.get_metric_history(self._id, name))
            for name in run.data.metrics
        }
        params = [
            Param(key, _text(value))
            for key, value in flat(config, ".").items()
            if key not in run.data.params
        ]
        for start in range(0, len(params), _PARAMS):
            client.log_batch(self._id, params=params[start : start + _PARAMS])

    def log(self, points: Sequence[Point]) -> None:
        new = [
            Metric(name, value, round(point.time * 1000), point.step)
            for point in points
            for name, value in point.figures.items()
            if point.step > self._last_steps.get(name, -1)
        ]
        for start in range(0, len(new), _METRICS):
            batch = new[start : start + _METRICS]
            self._client.log_batch(self._id, metrics=batch)
            self._last_steps |= {metric.key: metric.step for metric in batch}

    def add_results(self, results: Results) -> None:
        for name, value in results.scores.items():
            if self._figures.get(name) != value:
                self._client.log_metric(self._id, name, value, step=results.step)
        tags = [RunTag(f"sha256/{file}", digest) for file, digest in results.digests.items()]
        for start in range(0, len(tags), _TAGS):
            self._client.log_batch(self._id, tags=tags[start : start + _TAGS])
        for file in results.files:
            self._client.log_artifact(self._id, str(file))

    def finish(self) -> None:
        if not self._finished:
            self._client.set_terminated(self._id)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:_CHARACTERS]
