"""The resources of this machine, without importing a library that computes."""

import os
import platform
import re
from itertools import takewhile
from pathlib import Path

import psutil

# CPU time of a container and the period of it: microseconds, or "max". Doesn't exist elsewhere.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_of_container() -> int | None:
    """Whole cores whose time a container may use, at least 1; None if it isn't limited."""
    if not _QUOTA.exists():
        return None
    quota, period = _QUOTA.read_text().split()
    return None if quota == "max" else max(1, int(quota) // int(period))


def gpus() -> list[str]:
    """The NVIDIA GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    # CUDA ignores an invalid name and all that follow it; users switch GPUs off by one.
    return list(takewhile(_NAME.fullmatch, map(str.strip, visible.split(","))))


def description() -> dict[str, str | int | float]:
    """This machine in records: system, processor, cores, memory in GB, GPUs."""
    return {
        "system": platform.platform(),
        "processor": _processor() or platform.machine(),
        "cores": cores(),
        "memory": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": len(gpus()),
    }


def _processor() -> str | None:
    facts = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.+)$", facts.read_text(), re.M) if facts.exists() else None
    return match[1] if match else None
