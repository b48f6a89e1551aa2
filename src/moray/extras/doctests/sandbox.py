"""Run Python programs that nobody has read, in a sandbox.

bubblewrap gives each run its own namespaces: no network, no files but Python's standard library,
and no other processes. The kernel's resource limits bound its time and memory.
"""

import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_MEMORY = 1 << 30
_FILE_SIZE = 1 << 20
# Runs before the program, in its process.
_LIMITS = """
import resource
for kind, limit in (
    (resource.RLIMIT_CPU, {seconds}),
    (resource.RLIMIT_AS, {memory}),
    (resource.RLIMIT_FSIZE, {file_size}),
    (resource.RLIMIT_NOFILE, 64),
    (resource.RLIMIT_NPROC, 64),
    (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(kind, (limit, limit))
"""


def sandbox_works() -> bool:
    """Whether programs can be run here: bubblewrap is installed, and namespaces are permitted."""
    return bool(shutil.which("bwrap")) and run_sandboxed("print(1)", "") == "1\n"


def run_sandboxed(program: str, text: str, seconds: int = 10) -> str:
    """Run a program on a text, in 1 GiB of memory and so many seconds of CPU time.

    It is ended after twice as long in any case.

    Returns:
        What it wrote to its standard output until it ended or was ended, at most 1 MiB.
    """
    limits = _LIMITS.format(seconds=seconds, memory=_MEMORY, file_size=_FILE_SIZE)
    python = Path(sys.executable).resolve()
    # Folders that an interpreter and its libraries may be in; absent ones are left out.
    visible = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", sys.base_prefix)
    mounts = [word for place in visible for word in ("--ro-bind-try", place, place)]
    command = [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        *(*mounts, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"),
        *("--", str(python), "-I", "-S", "-c", limits + program),
    ]
    # The limit of a file's size doesn't hold for a pipe.
    with tempfile.TemporaryFile() as output:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                input=text.encode(),
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=2 * seconds,
            )
        output.seek(0)
        return output.read().decode(errors="replace")
