"""The temporary folder of a stage's workers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import execution_of

from moray.evaluate.driver import start_evaluation_workers

_IN_ITS_FOLDER = """
import json, sys
from pathlib import Path
from moray.evaluate.driver import start_evaluation_workers

output, execution = Path(sys.argv[1]), json.loads(sys.argv[2])
cfg = {"precision": "fp32"}
with start_evaluation_workers("evaluate", "name", output, cfg, execution) as workers:
    print(workers.job.folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.long
def test_the_folders_of_killed_starts_are_removed_and_not_those_of_others(tmp_path: Path) -> None:
    execution, output = execution_of("evaluate"), tmp_path / "eval.json"
    command = [sys.executable, "-c", _IN_ITS_FOLDER, str(output), json.dumps(execution)]
    killed, alive = (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    folders = [Path(each.stdout.readline().strip()) for each in (killed, alive) if each.stdout]
    killed.kill()
    killed.communicate()
    kept = folders[1] / "kept"
    kept.touch()
    cfg = {"precision": "fp32"}
    with start_evaluation_workers("evaluate", "name", output, cfg, execution) as workers:
        own = workers.job.folder
        assert {*tmp_path.iterdir()} == {folders[1], own}
        assert kept.exists()
    assert [*tmp_path.iterdir()] == [folders[1]]
    alive.communicate()
    assert [*tmp_path.iterdir()] == []
