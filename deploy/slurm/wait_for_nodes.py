"""Wait until the Ray at RAY_ADDRESS has a number of nodes, because `auto` counts those there are.

python deploy/slurm/wait_for_nodes.py NODES
"""

import sys
import time

import ray

_SECONDS = 300


def main() -> None:
    """Exits with 1 if nodes are still missing after five minutes."""
    wanted = int(sys.argv[1])
    ray.init(address="auto", log_to_driver=False)
    end = time.monotonic() + _SECONDS
    while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
        if time.monotonic() > end:
            sys.exit(f"moray: Ray has {there} of {wanted} nodes after {_SECONDS} s")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
