"""Exactly the jobs that a change affects are planned again."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT, Change, Project, code, setting

pytestmark = pytest.mark.long

TUNED = {"finetune tuned", "export tuned", "evaluate tuned", "generate tuned"}
RUNS = TUNED | {"finetune base", "export base", "evaluate base", "generate base"}
FUNCTIONS_TOKENS = {"tokenize functions"}
TOKENS = {"tokenize functions", "tokenize modules"}


def all_of(*changes: Change) -> Change:
    """Several at once, none of which affects anything: a dry run takes two seconds."""

    def change(project: Project) -> None:
        for each in changes:
            each(project)

    return change


def older(module: str) -> Change:
    """Put an older version of a module in its place, as copying with its time does."""

    def change(project: Project) -> None:
        code(module)(project)
        os.utime(project.folder / "src/moray" / module, (0, 0))

    return change


def reworded(module: str, old: str, new: str) -> Change:
    """Change a message of a module."""

    def change(project: Project) -> None:
        path = project.folder / "src/moray" / module
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


def released(project: Project) -> None:
    """Release the package as it is, which is what a pull brings."""
    program = "from moray.provenance.edits import write_lock; write_lock()"
    subprocess.run([sys.executable, "-c", program], env=project.environment(), check=True)


def deleted(path: str) -> Change:
    return lambda project: (project.folder / path).unlink()


def reversed_times(project: Project) -> None:
    """Touch every file, so that what was made last is now oldest."""
    hidden = project.folder / ".snakemake"
    files = [p for p in project.folder.rglob("*") if p.is_file() and hidden not in p.parents]
    files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    newest = files[0].stat().st_mtime
    for second, path in enumerate(files, start=1):
        os.utime(path, (newest + second, newest + second))


def clone_copied_over(project: Project) -> None:
    for name in ("src", "workflow"):
        shutil.copytree(
            ROOT / name, project.folder / name, copy_function=shutil.copyfile, dirs_exist_ok=True
        )
    (project.folder / "Snakefile").write_bytes((ROOT / "Snakefile").read_bytes())


def there_and_back(project: Project) -> None:
    before = project.config.read_bytes()
    project.configure(["defaults", "train", "learning_rate"], 0.5)
    assert "finetune base" in project.planned()
    project.config.write_bytes(before)


def more_data(project: Project) -> None:
    with (project.folder / "data/functions.jsonl").open("a") as file:
        file.write('{"prompt": "def one():\\n", "completion": "    return 1\\n"}\n')


def older_data(project: Project) -> None:
    """Put other rows in their place, from a file that is older than all results."""
    more_data(project)
    os.utime(project.folder / "data/functions.jsonl", (0, 0))


NOTHING: set[str] = set()
WITHOUT_EFFECT = (
    "config/schema/sections.py",
    "tasks/language/sources/hub.py",
    "errors.py",
    "extras/memory_plan/demand.py",
    "tasks/language/proofs/tokens.py",
    "provenance/manifest.py",
    "stages/boundary.py",
    "storage/locks.py",
    "tracking/following.py",
)

CHANGES: dict[str, tuple[Change, set[str]]] = {
    # Keys that change a result.
    "temperature": (
        setting("defaults.generate.temperature", 0.9),
        {"generate base", "generate tuned"},
    ),
    "bootstrap samples": (
        setting("defaults.evaluate.bootstrap_samples", 30),
        {"evaluate base", "evaluate tuned"},
    ),
    "learning rate of one run": (setting("runs.tuned.train", {"learning_rate": 1e-3}), TUNED),
    "learning rate of all runs": (setting("defaults.train.learning_rate", 1e-3), RUNS),
    "seed": (setting("defaults.train.seed", 1), RUNS),
    "a run's temperature": (
        setting("runs.tuned.generate", {"temperature": 0.9}),
        {"generate tuned"},
    ),
    "weights of the base": (setting("models.tiny.seed", 1), RUNS | TOKENS | {"base model tiny"}),
    "vocabulary": (
        setting("models.tiny.tokenizer.vocab_size", 290),
        RUNS | TOKENS | {"base model tiny"},
    ),
    "block size": (setting("defaults.data.block_size", 32), RUNS | TOKENS),
    "share held out": (
        setting("datasets.functions.test_share", 0.3),
        {"download functions"} | FUNCTIONS_TOKENS | TUNED,
    ),
    "what becomes of long documents": (
        setting("defaults.data.long_documents", "drop"),
        RUNS | TOKENS,
    ),
    "a column's name": (
        setting("datasets.functions.columns", {"prompt": "completion", "completion": "prompt"}),
        {"download functions"} | FUNCTIONS_TOKENS | TUNED,
    ),
    "the user's data": (more_data, {"download functions"} | FUNCTIONS_TOKENS | TUNED),
    "the user's data, from an older file": (
        older_data,
        {"download functions"} | FUNCTIONS_TOKENS | TUNED,
    ),
    # Keys that only say how it is executed.
    "launcher, workers, micro-batch, checkpoints, loader and places": (
        all_of(
            setting("runs.base.train.launcher", "ray"),
            setting("runs.tuned.train.launcher", "ray"),
            setting("defaults.ray.num_workers", 1),
            setting("defaults.ray.storage_path", "elsewhere"),
            setting("defaults.train.micro_batch_size", 1),
            setting("defaults.train.save_steps", 1),
            setting("defaults.data.loader", "stream"),
            setting("defaults.data.stream_from", "s3://x"),
            setting("defaults.evaluate.batch_size", 1),
        ),
        NOTHING,
    ),
    # Edits of one's own; provenance/test_edits.py has which count.
    "an edit of the schedule": (code("train/schedule.py"), RUNS),
    "an edit of a language model's loss, from an older file": (
        older("tasks/language/loss.py"),
        RUNS,
    ),
    "edits of messages, comments, and code that can't change a result": (
        all_of(
            *(code(module) for module in WITHOUT_EFFECT),
            code("rows/order.py", "# a comment"),
            reworded("train/loop.py", "expected a finite one", "expected a number"),
        ),
        NOTHING,
    ),
    # Upgrades.
    "another version of moray, whose results are the same": (
        all_of(code("train/schedule.py"), released),
        NOTHING,
    ),
    "another version of moray, with a version of its results raised": (
        all_of(
            code("train/schedule.py"),
            reworded("config/versions.py", '"evaluate language": 1', '"evaluate language": 2'),
            released,
        ),
        {"evaluate base", "evaluate tuned"},
    ),
    # What isn't a change.
    "unused template and dataset, the order of keys": (
        all_of(
            setting("defaults.data.chat_template", "{{ x }}"),
            setting("datasets.unused", {"source": "files", "path": "data/modules.jsonl"}),
            setting(
                "datasets.functions",
                {
                    "validation_share": 0.1,
                    "test_share": 0.2,
                    "format": "prompt-completion",
                    "path": "data/functions.jsonl",
                    "source": "files",
                },
            ),
        ),
        NOTHING,
    ),
    "nothing": (lambda project: None, NOTHING),
    "every file touched": (reversed_times, NOTHING),
    "a clone copied over": (clone_copied_over, NOTHING),
    "a change taken back": (there_and_back, NOTHING),
    # Entries that come and go.
    "another run": (
        setting("runs.other", {"model": "tiny", "dataset": "modules"}),
        {"finetune other", "export other", "evaluate other", "generate other"},
    ),
    "a run less": (setting("runs.tuned", None), NOTHING),
    "a result less": (deleted("results/runs/tuned/samples.jsonl"), {"generate tuned"}),
    # What was made of it is up to date, so that nothing waits for it.
    "rows less": (deleted("results/datasets/functions/train.parquet"), NOTHING),
}


@pytest.mark.parametrize("change", CHANGES)
def test_plans_what_a_change_affects(change: str, finished: Project, tmp_path: Path) -> None:
    apply, expected = CHANGES[change]
    project = finished.copy(tmp_path / "project")
    apply(project)
    assert project.affected() == expected


def test_what_a_failed_stage_should_have_replaced_is_not_up_to_date(
    finished: Project, tmp_path: Path
) -> None:
    project = finished.copy(tmp_path / "project")
    before = project.config.read_bytes()
    project.configure(["datasets", "functions", "columns"], {"prompt": "a", "completion": "b"})
    assert project.snakemake("data").returncode != 0
    expected = {"download functions"} | FUNCTIONS_TOKENS | TUNED
    assert project.affected() == expected
    project.config.write_bytes(before)
    assert project.affected() == expected
    done = project.snakemake("data")
    assert done.returncode == 0, done.stderr
    # It has run again, so the next command doesn't run it once more.
    assert project.affected() == NOTHING


def test_files_count_by_content_and_not_by_time(fresh: Project) -> None:
    """Also those that are too large for the checksums that Snakemake compares."""
    rows = fresh.folder / "data/modules.jsonl"
    rows.write_bytes(rows.read_bytes() + b'{"text": "' + b"x" * 1_200_000 + b'"}\n')
    target = "results/datasets/modules/dataset.json"
    done = fresh.snakemake(target)
    assert done.returncode == 0, done.stderr
    assert fresh.planned(target) == NOTHING
    kept = fresh.folder / "kept"
    shutil.copy(rows, kept)
    os.utime(rows)
    assert fresh.planned(target) == NOTHING
    # The same bytes at another inode, newer than the results.
    os.replace(kept, rows)
    assert fresh.planned(target) == NOTHING
    before = rows.read_bytes()
    other = before.replace(b"xx", b"xy", 1)
    assert len(other) == len(before)
    rows.write_bytes(other)
    os.utime(rows, (0, 0))
    assert fresh.planned(target) == {"download modules"}
    # Without params, times are what is left.
    os.utime(rows)
    by_time = ("--rerun-triggers", "mtime", "--", target)
    assert fresh.planned(*by_time) == {"download modules"}
    rows.write_bytes(before)
    assert fresh.planned(target) == NOTHING
    rows.unlink()
    done = fresh.snakemake("--dry-run", "--forcerun", "download", target)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        "datasets.modules.path: there is no file data/modules.jsonl, and no rule makes it; check "
        "the path; it is relative to the working directory"
    )


def test_without_snakemakes_records_results_are_held_against_the_config(
    finished: Project, tmp_path: Path
) -> None:
    project = finished.copy(tmp_path / "project")
    shutil.rmtree(project.folder / ".snakemake")
    assert project.affected() == NOTHING
    before = project.config.read_bytes()
    for path, value, line in (
        ("runs.base.train.learning_rate", 0.5, "results/runs/base/train.json: was made of some"),
        ("models.tiny.seed", 1, "results/models/tiny/manifest.json: was made of something else"),
    ):
        setting(path, value)(project)
        done = project.snakemake("--dry-run", "eval")
        assert done.returncode != 0
        assert done.stderr.splitlines()[-1].startswith(line)
        project.config.write_bytes(before)
    older_data(project)
    done = project.snakemake("--dry-run", "eval")
    assert done.stderr.splitlines()[-1].startswith(
        "results/datasets/functions/dataset.json: was made of something else: "
        "files.data/functions.jsonl ("
    )
    again = ("--forcerun", "results/datasets/functions/dataset.json", "--", "eval", "generate")
    assert project.affected(*again) == {"download functions"} | FUNCTIONS_TOKENS | TUNED


def test_a_finished_run_is_not_trained_again_because_its_tokens_are_gone(
    finished: Project, tmp_path: Path
) -> None:
    project = finished.copy(tmp_path / "project")
    record = project.folder / "results/runs/tuned/train.json"
    before = record.read_bytes()
    for folder in ("results/tokens", "results/state"):
        shutil.rmtree(project.folder / folder)
    # What needs them is there.
    assert project.affected() == NOTHING
    (project.folder / "results/runs/tuned/eval.json").unlink()
    done = project.snakemake("eval")
    assert done.returncode != 0
    line = done.stderr.splitlines()[-1]
    found = re.fullmatch(
        r"runs\.tuned: is trained, and would be trained again because "
        r"(results/tokens/functions-\S+/manifest\.json) is gone; run snakemake \1 alone first, and "
        r"the same command then; or add --forcerun results/runs/tuned/train\.json to train it "
        r"again",
        line,
    )
    assert found, line
    assert record.read_bytes() == before
    done = project.snakemake(found[1])
    assert done.returncode == 0, done.stderr
    assert project.affected("eval") == {"evaluate tuned"}
    # A change is still one.
    shutil.rmtree(project.folder / "results/tokens")
    setting("runs.tuned.train.learning_rate", 0.5)(project)
    assert "finetune tuned" in project.affected("eval")
