"""A driver on a node: trains jobs one after another on the workers of a cluster.

`python -m clusters.driver FILE`, with a pickled `Driven`.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clusters.nodes import ADDRESS, Nodes
from fleet import train_each

from moray.config.schema.sections import Ray
from moray.errors import UserError
from moray.train.spec import RunSpec
from moray.workers.entry import Worker
from moray.workers.launch import Launch
from moray.workers.run import run_on_workers

# What nodes and drivers need to find.
PATHS = [Path(__file__).parents[2] / "src", Path(__file__).parents[1]]


@dataclass(frozen=True)
class Driven:
    """What to train where.

    Attributes:
        folder: for what workers share.
        ray: the `ray` section.
        jobs: may be none, to start workers alone.
        entry_point: what each worker does with the jobs.
    """

    folder: Path
    ray: Ray
    jobs: list[RunSpec] = field(default_factory=list)
    entry_point: Callable[[list[RunSpec], Worker], None] = train_each


def drive(nodes: Nodes, driven: Driven, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a driver on node `a`."""
    driven.folder.mkdir(exist_ok=True)
    file = driven.folder / "driven.pickle"
    file.write_bytes(pickle.dumps(driven))
    paths = {"PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    return subprocess.run(
        nodes.command("a", sys.executable, "-m", "clusters.driver", str(file)),
        env=nodes.environment | paths | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def on_cluster(**keys: object) -> Ray:
    """The `ray` section of a run on the nodes, two workers of it without further keys."""
    return Ray.model_validate({"address": ADDRESS, "num_workers": 2, "max_failures": 0, **keys})


def main(file: str) -> None:
    """Train what the file holds; an error of the user's is one line."""
    # Written by the test.
    driven: Driven = pickle.loads(Path(file).read_bytes())
    launch = Launch(driven.ray, "runs.name.ray", driven.folder, "ray", timeout=600)
    try:
        run_on_workers(driven.entry_point, driven.jobs, launch)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    # So that what is pickled finds its class by the same name.
    from clusters.driver import main as run

    run(sys.argv[1])
