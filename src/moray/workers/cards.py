"""Identities of GPUs, whatever names a process knows them by.

A number counts the GPUs that a process may open, which differ between the jobs of a machine, and a
GPU has several names.
"""

import ctypes
import subprocess
import sys
import uuid


def identities(names: list[str]) -> list[str]:
    """The UUIDs of this process's GPUs or MIG instances; the name of one that the driver lacks.

    The names are all of them, in order, as in `CUDA_VISIBLE_DEVICES`.
    """
    # A child asks the driver, because a process that did keeps the GPUs that it saw then.
    process = subprocess.run(
        [sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True, check=False
    )
    uuids = process.stdout.split()
    return [*uuids, *names[len(uuids) :]]


def _main() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    count, device, identity = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return
    for index in range(count.value):
        driver.cuDeviceGet(ctypes.byref(device), index)
        # The first version would give a MIG instance the UUID of the whole card.
        driver.cuDeviceGetUuid_v2(identity, device)
        print(uuid.UUID(bytes=bytes(identity)))


if __name__ == "__main__":
    _main()
