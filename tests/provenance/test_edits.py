"""Edits of the package, and the stages that they may affect."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moray.provenance.edits import LOCK, PACKAGE, meaning

STAGES = {
    "download": ["moray.tasks.language.sources.files"],
    "base_model": ["text", "language"],
    "tokenize": ["language"],
    "finetune": ["language"],
    "export": ["text", "language"],
    "evaluate": ["language"],
    "generate": [],
    "predict": ["images"],
    "report": [],
    "track": [],
}
# Makes each edit in turn, and says which stages it may affect.
PROGRAM = f"""
import json, sys
from moray.provenance import edits

for module, line in json.loads(sys.argv[1]):
    file = edits.PACKAGE / module
    before = file.read_text() if file.exists() else None
    file.write_text((before or "") + line)
    edits._edited_modules.cache_clear()
    if not line.startswith("CHANGED"):
        edits._closure.cache_clear(), edits._imports.cache_clear()
    found = {{stage: edits.edits_of(stage, names) for stage, names in {STAGES}.items()}}
    print(json.dumps({{stage: digest for stage, digest in found.items() if digest}}))
    if line.startswith("CHANGED"):
        file.unlink() if before is None else file.write_text(before)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("edits") / "src/moray"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # So that digests are kept.
    (copy.parent / ".snakemake").mkdir()
    return copy


def affected(package: Path, *edits: tuple[str, str]) -> list[dict[str, str]]:
    """For each edit of a module, the stages that it may affect, with the digest of their edits.

    Lines that begin with `CHANGED` are removed again.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(edits)],
        cwd=package.parent,
        env=os.environ | {"PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_lock_is_that_of_the_package(package: Path) -> None:
    """`make code-lock` writes it."""
    program = "from moray.provenance.edits import write_lock; write_lock()"
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    written = (package / LOCK.name).read_text()
    assert written == LOCK.read_text(), "run make code-lock"


MODELS = {"base_model", "finetune", "export", "evaluate", "generate", "predict"}
TOKENS = {"tokenize", "finetune", "export", "evaluate", "generate"}
AFFECTED = {
    "tasks/language/sources/files.py": {"download", "tokenize"},
    "tasks/language/sources/hub.py": set(),
    "train/schedule.py": {"finetune"},
    "train/performance.py": {"finetune"},
    "train/strategies/fsdp2.py": {"finetune"},
    "tasks/language/loss.py": {"finetune", "export", "evaluate"},
    "tasks/language/chat.py": TOKENS,
    "tasks/images/task.py": {"predict"},
    "tasks/images/report.py": {"report"},
    "report/overview.py": {"report"},
    "extras/adamw_8bit/optimizer.py": {"finetune", "export"},
    "extras/bf16_weights/rounding.py": {"finetune", "export"},
    "extras/quantized_base/base.py": MODELS,
    "extras/tensorboard/tracker.py": {"track"},
    "extras/memory_plan/demand.py": set(),
    "extras/object_store/bucket.py": set(),
    "workers/collectives.py": {
        "base_model",
        "finetune",
        "export",
        "evaluate",
        "generate",
        "predict",
    },
    "workers/ray_train.py": set(),
    "train/supervision.py": set(),
    "config/tasks.py": set(),
    "config/schema/sections.py": set(),
    "tasks/language/proofs/tokens.py": set(),
    "storage/folder.py": set(),
    "errors.py": set(),
}


def test_an_edit_counts_for_the_stages_that_import_it(package: Path) -> None:
    found = affected(package, *((module, "CHANGED = True\n") for module in AFFECTED))
    assert dict(zip(AFFECTED, map(set, found), strict=True)) == AFFECTED


def test_a_template_counts_for_what_is_made_with_it(package: Path) -> None:
    templates = ("report/templates/style.css", "tasks/language/report.html")
    for found in affected(package, *((template, "CHANGED") for template in templates)):
        assert set(found) == {"report"}


def test_each_edit_has_another_digest_and_none_if_taken_back(package: Path) -> None:
    module = "train/schedule.py"
    first, second, none = affected(
        package, (module, "CHANGED = 1\n"), (module, "CHANGED = 2\n"), (module, "# a comment\n")
    )
    assert len({first["finetune"], second["finetune"]}) == 2
    assert none == {}


def test_what_is_no_module_or_cannot_be_parsed_stops_nothing(package: Path) -> None:
    (package / "train/.#loop.py").symlink_to("nowhere")
    (package / "train/._loop.py").write_bytes(b"\0")
    draft = package / "train/draft.py"
    draft.write_text("def half(")
    try:
        (found,) = affected(package, ("errors.py", "CHANGED = True\n"))
    finally:
        draft.unlink()
    assert found == {}


def test_a_module_of_ones_own_counts_where_it_is_imported(package: Path) -> None:
    own, using = "train/own.py", "from moray.train.own import FACTOR\n"
    alone, used, changed = affected(
        package, (own, "FACTOR = 2\n"), ("train/schedule.py", using), (own, "FACTOR = 3\n")
    )
    assert alone == {}
    assert set(used) == {"finetune"}
    assert set(changed) == {"finetune"}
    assert changed != used


CODE = """
import numpy as np


class Rates:
    peak = 1

    def at(self, step, last=None):
        if step > 10:
            raise UserError("a.key", f"got {step}", "lower it")
        say(f"step {step}")
        return f"{self.peak * step}", {"a": 1, **{}}
"""
READ_ONLY = '''"""What rates are."""
import numpy as np

# Rates.
class Rates:
    """Rates of a run."""
    peak = 1  # reached early
    def at(
        self, step, last=None,
    ):
        """The rate at a step."""
        if (step > 10):
            raise UserError(
                "a.key", f"{step} is more than {10}", "use a smaller one")
        say("another step")
        return f'{self.peak * step}', {
            'a': 0x1,
            **{},
        }
'''


def test_comments_docstrings_formatting_and_messages_do_not_count() -> None:
    assert meaning(CODE.encode()) == meaning(READ_ONLY.encode())
    row = 'raise RowError(row, "expected text")'
    assert meaning(row.encode()) == meaning(row.replace("text", "a text").encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("peak = 1", "peak = 2"),
        ("peak = 1", "peak = 1.0"),
        ("peak = 1", "peak = True"),
        ("peak = 1", "peak = '1'"),
        ("peak = 1", "peak = None"),
        ("last=None", "last=..."),
        ("last=None", "last"),
        ("last=None", "*, last=None"),
        ("step > 10", "step >= 10"),
        ("self.peak * step", "self.peak + step"),
        ("self.peak * step", "self.peak * step:.1f"),
        ("{self.peak * step}", "self.peak * step"),
        ("as np", "as nq"),
        ("**{}", "'b': {}"),
        ("        say(f", "            say(f"),
        ("UserError(", "SkipError("),
        ("raise UserError", "UserError"),
        ('"lower it")', '"lower it", step)'),
        # Text that isn't a docstring.
        ("    peak = 1", "    peak = 1\n    'a value'"),
    ],
)
def test_each_change_of_what_the_code_does_counts(old: str, new: str) -> None:
    assert old in CODE
    assert meaning(CODE.encode()) != meaning(CODE.replace(old, new).encode())


PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")


def runs(python: str) -> bool:
    """Version managers have commands for versions that aren't there."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


def digest_of(package: Path) -> str:
    program = "from moray.provenance.edits import code_digest; print(code_digest())"
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode()


def test_code_that_does_something_else_has_another_digest(package: Path) -> None:
    module = package / "corpus/staging.py"
    before, source = digest_of(package), module.read_text()
    module.write_text(f"{source}# Why.")
    assert digest_of(package) == before
    module.write_text(f"{source}NEW_COLUMN = 1")
    assert digest_of(package) != before
    module.write_text(source)


@pytest.mark.parametrize("python", [name for name in PYTHONS if runs(name)])
def test_other_versions_of_python_have_the_same_digests(python: str, tmp_path: Path) -> None:
    """Otherwise all would be edited there."""
    program = "from moray.provenance.edits import _edited_modules; print(_edited_modules())"
    done = subprocess.run(
        [python, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "{}\n"
