"""Check what a machine needs to train, and say what to do about what it lacks."""

import fcntl
import platform
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from packaging.requirements import InvalidRequirement, Requirement

from moray import machine
from moray.config.schema.sections import Ray
from moray.errors import UserError, first_line

# The default experiment takes somewhat less.
_MEMORY_GB, _DISK_GB = 6.0, 3.0


@dataclass(frozen=True)
class Check:
    """A finding about one thing, and a remedy; None if nothing is wrong."""

    name: str
    finding: str
    remedy: str | None = None


def checks(folder: Path, lock: Path) -> Iterator[Check]:
    """Check this machine, from what takes no time to what takes seconds.

    The lock file has the versions of libraries that moray is tested with.
    """
    yield python()
    yield libraries(lock)
    yield cores()
    yield memory()
    yield disk(folder)
    yield locks(folder)
    yield gpus()
    yield compiler()
    yield ray()


def python() -> Check:
    """The version of Python."""
    version = f"{platform.python_version()}, {sys.executable}"
    too_old = sys.version_info < (3, 11)
    return Check("Python", version, "install Python 3.11 or newer" if too_old else None)


def libraries(lock: Path) -> Check:
    """The installed libraries, held against a lock file."""
    if not lock.exists():
        return Check("libraries", f"there is no {lock} to compare with")
    pinned = dict(filter(None, map(_pin, lock.read_text(errors="replace").splitlines())))
    faults = []
    for name, expected in pinned.items():
        try:
            # Builds of PyTorch differ in what follows a plus sign.
            installed = version(name).partition("+")[0]
        except PackageNotFoundError:
            faults.append(f"no {name}")
            continue
        if installed != expected:
            faults.append(f"{name} {installed} instead of {expected}")
    if faults:
        return Check("libraries", ", ".join(faults), f"pip install -r {lock}")
    return Check("libraries", f"the {len(pinned)} versions in {lock}")


def _pin(line: str) -> tuple[str, str] | None:
    """The name and the version that a line of a requirements file pins on this machine, if any."""
    try:
        # Behind it can be a comment, or a hash in the next line.
        requirement = Requirement(re.split(r"\s#|\s--|\\$", line)[0])
    # The line is empty, a comment or an option.
    except InvalidRequirement:
        return None
    versions = [each.version for each in requirement.specifier if each.operator == "=="]
    applies = requirement.marker is None or requirement.marker.evaluate()
    return (requirement.name, versions[0]) if versions and applies else None


def cores() -> Check:
    """Processor cores, held against a container's limit."""
    there, allowed = machine.cores(), machine.cores_of_container()
    if allowed is not None and allowed < there:
        return Check(
            "cores",
            f"{there}, of which this container may use the time of {allowed}",
            f"start snakemake with --cores {allowed}",
        )
    return Check("cores", str(there))


def memory() -> Check:
    """Main memory that is free."""
    facts = psutil.virtual_memory()
    free, total = facts.available / 1e9, facts.total / 1e9
    return _room("memory", free, _MEMORY_GB, f"{free:.1f} of {total:.1f} GB free")


def disk(folder: Path) -> Check:
    """Free space in the project's folder."""
    free = shutil.disk_usage(folder).free / 1e9
    return _room("disk", free, _DISK_GB, f"{free:.1f} GB free in {folder.absolute()}")


def _room(name: str, free: float, demand: float, finding: str) -> Check:
    remedy = f"free some: the default experiment takes about {demand:g} GB"
    return Check(name, finding, remedy if free < demand else None)


def locks(folder: Path) -> Check:
    """Whether the project's file system has locks, which keep a second driver out of a run."""
    where = folder.absolute()
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    except OSError as error:
        remedy = "choose a folder that you may write to"
        return Check("locks", f"no file can be written to {where} ({error.strerror})", remedy)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            remedy = "choose a folder on another disk, or set ray.storage_path to one"
            return Check("locks", f"{where} has none ({error.strerror})", remedy)
    return Check("locks", f"work in {where}")


def gpus() -> Check:
    """GPUs, and whether PyTorch can use them."""
    import torch

    there, usable = len(machine.gpus()), torch.cuda.device_count()
    if there > usable:
        build = torch.version.cuda
        how = f"is built for CUDA {build}" if build else "is built without CUDA"
        return Check(
            "GPUs",
            f"{there}, of which PyTorch {torch.__version__} ({how}) can use {usable}",
            "check the driver with nvidia-smi" if build else "install PyTorch's build for CUDA",
        )
    names = ", ".join(torch.cuda.get_device_name(number) for number in range(usable))
    return Check("GPUs", names or "none; training runs on the CPU")


def compiler() -> Check:
    """Whether `torch.compile` works, which needs a compiler."""
    import torch

    from moray.train.kernels import compiler_fault

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if fault := compiler_fault(device):
        remedy = "install g++, or set train.compile: false, which is slower"
        return Check("compiler", fault, remedy)
    return Check("compiler", "compiles")


def ray() -> Check:
    """Whether Ray Train starts a worker on this machine."""
    from moray.workers.launch import Launch
    from moray.workers.run import run_on_workers

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        section = Ray(num_workers=1, use_gpu=False, max_failures=0)
        launch = Launch(section, "defaults.ray", Path(folder), "ray", timeout=60)
        try:
            run_on_workers(_nothing, None, launch)
        except UserError as error:
            return Check("Ray", error.problem, error.remedy)
        except Exception as error:
            traceback.print_exc()
            return Check("Ray", f"no worker starts ({first_line(error)})", "see the log")
    return Check("Ray", f"starts a worker in {time.perf_counter() - began:.0f} s")


def _nothing(argument: None, worker: object) -> None:
    pass
