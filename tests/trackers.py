"""What trackers have of a run, as their own libraries or formats tell it."""

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

Points = list[tuple[int, float]]
"""Steps and values, in the order in which the tracker has them."""


def in_tensorboard(folder: Path, name: str) -> Points:
    """The points of a scalar, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = (folder / "results/tensorboard").iterdir()
    reader = EventAccumulator(str(run), {"scalars": 0})
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(name)]


def in_mlflow(folder: Path, name: str) -> Points:
    """The points of a metric of the only run in the folder's store."""
    from mlflow import MlflowClient

    # A client that opens a store creates its tables, as the driver may be doing at this moment.
    with closing(sqlite3.connect(f"file:{folder}/mlflow.db?mode=ro", uri=True)) as store:
        assert store.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("moray")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in history]


def in_wandb(folder: Path, name: str) -> Points:
    """The points of a metric in all offline folders, by W&B's own reader."""
    return [
        (item["_step"], item[name])
        for record in wandb_records(folder)
        if record["type"] == "history" and name in (item := record["history"]["item"])
    ]


def wandb_records(folder: Path) -> list[dict[str, Any]]:
    """What W&B's offline folders have, in the order in which they would be synchronised."""
    return [
        json.loads(line)
        for log in sorted((folder / "results/wandb").glob("offline-run-*/*.wandb"))
        for line in _lines_of("wandb", "leet", "inspect", "--json", str(log))
    ]


def _lines_of(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


READERS = {"tensorboard": in_tensorboard, "mlflow": in_mlflow, "wandb": in_wandb}


def environment(folder: Path) -> dict[str, str]:
    """Environment variables that keep everything in a folder."""
    return {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        # So that its own reader sees a run under way without a delay.
        "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "0.5",
    }
