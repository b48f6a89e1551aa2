"""What a launcher runs in a worker."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

from moray.train.launchers.work import work
from moray.workers.worker import Worker


def test_a_worker_gives_facts_or_the_fault_and_keeps_its_collector(
    make_job: Any, alone: Worker, tmp_path: Path
) -> None:
    assert work(make_job(), alone)["ended"] is True
    assert gc.isenabled()
    (path, *_) = work(replace(make_job(), start=tmp_path), alone)["fault"]
    assert path == str(tmp_path)
    assert gc.isenabled()
