"""What trackers have of a run, as their own libraries or formats tell it."""

from pathlib import Path

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

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("moray")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in history]


READERS = {"tensorboard": in_tensorboard, "mlflow": in_mlflow}


def environment(folder: Path) -> dict[str, str]:
    """Environment variables that keep everything in a folder."""
    return {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
