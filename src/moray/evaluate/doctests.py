"""Run functions that nobody has read against the examples of their docstring, in a sandbox.

bubblewrap gives each run its own namespaces: no network, no files but Python's standard library,
and no other processes. The kernel's resource limits bound its time and memory.
"""

import ast
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from moray.corpus.sources import text_python_stdlib

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

# A body for which examples that need the function fail.
_STUB = "\n{indent}raise NotImplementedError\n"

# The names of the module are those that the function and its examples find. A function could end
# the process or write to its output, but doesn't know the word that says that all examples passed.
_PROGRAM = """
import doctest, importlib, json, os, sys
job = json.loads(sys.stdin.read())
output = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
names = {}
if job["module"]:
    names = dict(vars(importlib.import_module(job["module"])))
exec(compile(job["source"], "<function>", "exec"), names)
found = doctest.DocTestFinder(recurse=False).find(
    names[job["name"]], job["name"], module=False, globs=names
)
runner = doctest.DocTestRunner(verbose=False)
for test in found:
    runner.run(test)
if runner.tries and not runner.failures:
    print(job["word"], file=output)
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
    # Where an interpreter and its libraries may be; absent folders are left out.
    visible = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", sys.base_prefix)
    bound = [word for place in visible for word in ("--ro-bind-try", place, place)]
    command = [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        *(*bound, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"),
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


def function_of(prompt: str) -> tuple[str, str] | None:
    """The function whose body follows a prompt.

    Returns:
        Its name, and the module of the standard library that it is from, empty if it is from none;
        None if the prompt isn't a signature and a docstring with examples.
    """
    if ">>>" not in prompt:
        return None
    try:
        (node,) = ast.parse(prompt).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    return node.name, _modules().get(prompt, "")


def passes(source: str, name: str, module: str) -> bool:
    """Whether a function has doctests, and passes them; it may use the names of a module."""
    word = secrets.token_hex(8)
    job = {"source": source, "name": name, "module": module, "word": word}
    return run_sandboxed(_PROGRAM, json.dumps(job)).split() == [word]


def is_judgeable(prompt: str, reference: str) -> bool:
    """Whether the examples of a prompt judge the function's body.

    The original body passes them, and they fail without it: many examples call something else, or
    need more than the module.
    """
    function = function_of(prompt)
    if function is None:
        return False
    indent = reference[: len(reference) - len(reference.lstrip())]
    stub = prompt + _STUB.format(indent=indent.rpartition("\n")[2])
    return passes(prompt + reference, *function) and not passes(stub, *function)


@cache
def _modules() -> dict[str, str]:
    """The module of each documented function of the standard library, by its prompt."""
    return {
        document["prompt"]: document["group"]
        .removesuffix(".py")
        .removesuffix("/__init__")
        .replace("/", ".")
        for document in text_python_stdlib.functions()
    }
