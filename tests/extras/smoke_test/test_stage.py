"""The smoke test of a cluster, as a user starts it."""

import os
import subprocess
from pathlib import Path

import pytest
from clusters.driver import PATHS
from clusters.nodes import ADDRESS, ADDRESSES, two_nodes
from project import Project


@pytest.mark.release
def test_a_table_tells_what_the_nodes_can_do(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project")
    with two_nodes(tmp_path) as nodes:
        for name in ("a", "b"):
            nodes.start(name, cpus=2, paths=PATHS)
        keys = [f"address={ADDRESS}", "size_gb=0.005", "workers=3"]
        overlay = ("--configfile", "config/smoke-test.yaml", "--config", *keys)
        done = subprocess.run(
            nodes.command("a", "snakemake", "smoke_test", *overlay),
            cwd=project.folder,
            env=nodes.environment | {"PYTHONPATH": os.fspath(project.folder / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    table = (project.folder / "results/smoke-test/table.txt").read_text()
    assert table in done.stderr
    found = dict(line.split("  ", 1) for line in table.splitlines())
    assert found["nodes"].strip() == f"2 ({', '.join(ADDRESSES.values())})"
    assert found["workers"].strip() == "3"
    assert found["recovery from the loss of a worker"].strip().endswith(" s")
    assert found["steps"].strip() == "60, resumed from step 10"
