"""MLflow's store on this machine, which several runs open."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trackers import environment

pytestmark = pytest.mark.release

OPENER = """
import sys
from moray.tracking.interface import TrackedRun
from moray.extras.mlflow.tracker import open_run

run = TrackedRun(sys.argv[1], sys.argv[1], {})
print("ready", flush=True)
sys.stdin.readline()
with open_run(run):
    pass
"""


def test_runs_that_start_together_find_or_make_the_same_store(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, name],
            text=True,
            env=os.environ | environment(tmp_path),
            **pipes,
        )
        for name in ("first", "second", "third")
    ]
    for opener in openers:
        assert opener.stdout
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin
        opener.stdin.write("\n")
        opener.stdin.flush()
    for opener in openers:
        reported = opener.communicate()[1]
        assert opener.returncode == 0, reported
    client = MlflowClient(environment(tmp_path)["MLFLOW_TRACKING_URI"])
    runs = client.search_runs([client.get_experiment_by_name("moray").experiment_id])
    assert {run.info.run_name for run in runs} == {"first", "second", "third"}
