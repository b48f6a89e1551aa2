"""What this machine has: cores and GPUs, counted without importing a library that computes."""

import os
import re
from itertools import takewhile
from pathlib import Path

_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """The NVIDIA GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    # CUDA ignores an invalid name and all that follow it; users switch GPUs off by one.
    return list(takewhile(_NAME.fullmatch, map(str.strip, visible.split(","))))
