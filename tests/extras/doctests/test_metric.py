"""Functions that are judged by the examples of their docstrings; what they can't do."""

import inspect
import socket
import statistics
from functools import partial
from pathlib import Path

import pytest

from moray.extras.doctests.metric import function_of, is_judgeable, passes
from moray.extras.doctests.sandbox import run_sandboxed, sandbox_works
from moray.tasks.language import metric_requirements
from moray.tasks.language.metrics import score_texts

PROMPT = '''def twice(x):
    """Double a number.

    >>> twice(2)
    4
    """
'''
# Whatever its body does, the example is right.
IDLE = PROMPT.replace("twice(2)", "2 + 2")
BODY = "    return 2 * x\n"

TRIED = """
import sys
try:
    {what}
except {error}:
    print("refused")
else:
    print("done")
"""

in_sandbox = pytest.mark.skipif(
    not sandbox_works(),
    reason="bubblewrap isn't installed here, or user namespaces aren't permitted",
)


@pytest.mark.long
def test_a_function_is_found_by_its_signature_and_examples() -> None:
    assert function_of(PROMPT) == ("twice", "")
    for other in ("def f():\n    pass\n", "x = '>>>'\n", ">>> 1\n1\n", PROMPT + PROMPT):
        assert function_of(other) is None


def test_a_missing_sandbox_is_known_before_the_first_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    (fault,) = metric_requirements.missing("tuned", ["doctests"])
    assert str(fault).startswith("runs.tuned.generate.metrics: doctests needs bubblewrap (bwrap)")


@in_sandbox
def test_only_examples_that_the_original_passes_and_an_empty_body_fails_are_judged() -> None:
    prompts = [PROMPT, PROMPT, IDLE, "def f():\n"]
    references = [BODY, "    return 3 * x\n", BODY, "    pass\n"]
    assert list(map(is_judgeable, prompts, references)) == [True, False, False, False]
    formats = ["prompt-completion"] * 3 + ["text"]
    judge = partial(score_texts, prompts=prompts, references=references, formats=formats)
    assert judge("doctests", texts_by_model={"tuned": references}) == {"tuned": {0: True}}
    formats[0] = "text"
    assert judge("doctests", texts_by_model={"tuned": references}) == {"tuned": {}}


@in_sandbox
def test_continuations_are_run() -> None:
    continuations = {
        BODY: True,
        "    return x + x": True,
        "    return 5": False,
        "    return (": False,
        "    import os; os._exit(0)": False,
        "    print('passed'); return 5": False,
    }
    count = len(continuations)
    prompts, references, formats = ([one] * count for one in (PROMPT, BODY, "prompt-completion"))
    found = score_texts("doctests", prompts, references, formats, {"tuned": [*continuations]})
    assert found == {"tuned": dict(enumerate(continuations.values()))}


@in_sandbox
def test_functions_of_the_standard_library_have_the_names_of_their_module() -> None:
    lines = inspect.getsource(statistics.median_low).splitlines(keepends=True)
    end = max(number for number, line in enumerate(lines) if '"""' in line) + 1
    prompt, body = "".join(lines[:end]), "".join(lines[end:])
    assert function_of(prompt) == ("median_low", "statistics")
    # Its body calls `StatisticsError`.
    assert is_judgeable(prompt, body)


@in_sandbox
def test_a_program_has_its_input_and_the_standard_library() -> None:
    program = "import sys, statistics; print(statistics.mean(map(int, sys.stdin.read().split())))"
    assert run_sandboxed(program, "1 2 6") == "3\n"


@in_sandbox
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("bytearray(2 << 30)", "MemoryError"),
        ("import pathlib; pathlib.Path('/tmp/file').write_bytes(bytes(2 << 20))", "OSError"),
        ("open('/usr/file', 'w')", "OSError"),
        ("open('/etc/passwd')", "OSError"),
        ("import numpy", "ImportError"),
        ("files = [open('/dev/null') for _ in range(100)]", "OSError"),
    ],
    ids=["memory", "a large file", "a file of the system", "a user's file", "packages", "files"],
)
def test_what_it_may_not_is_refused(what: str, error: str) -> None:
    assert run_sandboxed(TRIED.format(what=what, error=error), "") == "refused\n"


@in_sandbox
def test_files_of_the_user_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    program = f"import os; print(os.path.exists({str(tmp_path / 'secret')!r}))"
    assert run_sandboxed(program, "") == "False\n"


@in_sandbox
def test_there_is_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection({server.getsockname()!r}, 1)"
        assert run_sandboxed(TRIED.format(what=connect, error="OSError"), "") == "refused\n"


@in_sandbox
def test_no_more_is_kept_of_the_output_than_of_a_file() -> None:
    program = """
import os
for _ in range(8):
    try:
        os.write(1, b"." * (1 << 20))
    except OSError:
        os._exit(0)
"""
    assert run_sandboxed(program, "") == "." * (1 << 20)
    # Where the word is written that says that all examples passed.
    spam = "    import os\n    while True: os.write(3, bytes(1 << 16))\n"
    assert not passes(PROMPT + spam, "twice", "")


@in_sandbox
@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60); print(1)"])
def test_a_program_that_does_not_end_is_ended(program: str) -> None:
    assert run_sandboxed("print('begun', flush=True)\n" + program, "", seconds=1) == "begun\n"
