"""What a workflow prints, of a real one with two rules."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

SNAKEFILE = """
rule all:
    input: "made", "broken"
    message: "all"

rule make:
    output: "made"
    message: "make it"
    shell: "touch {output}"

rule finetune_run:
    input: "made"
    output: "broken"
    log: "logs/broken.log"
    message: "break it"
    shell: "exit 1"
"""
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    return tmp_path


def command(*arguments: str) -> list[str]:
    program = str(Path(sys.executable).with_name("snakemake"))
    return [program, *arguments, "--cores", "1", "--logger", "moray"]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCE)}


def printed(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        command(*arguments), cwd=folder, env=environment(), capture_output=True, text=True
    )
    return done.stderr


def test_each_stage_that_ends_or_fails_has_a_line(folder: Path) -> None:
    lines = printed(folder).splitlines()
    assert lines[:3] == [
        "1 run to train, 3 jobs",
        "[1/3] make it",
        "failed: break it; see logs/broken.log",
    ]
    # The commands and reasons are in Snakemake's own log.
    assert re.fullmatch(r"Complete log\(s\): .*\.snakemake\.log", lines[3])
    assert lines[4].startswith("Elapsed time: ")
    assert len(lines) == 5
    assert "Nothing to be done" in printed(folder, "made")


def test_a_workflow_that_goes_on_after_a_failure_ends_with_what_was_done_and_what_failed(
    folder: Path,
) -> None:
    (folder / "Snakefile").write_text("""
rule all:
    input: expand("{name}.eval", name=("a", "b", "c", "d"))

rule finetune_run:
    output: "{name}.model"
    log: "logs/{name}.log"
    message: "finetune {wildcards.name}"
    shell: "echo 'error: no {wildcards.name}' > {log}; touch {wildcards.name}.model; "
        "[ {wildcards.name} = a -o {wildcards.name} = c ]"

rule evaluate_run:
    input: "{name}.model"
    output: "{name}.eval"
    message: "evaluate {wildcards.name}"
    shell: "touch {output}"
""")
    lines = printed(folder, "--keep-going").splitlines()
    done, *failed = lines[-5:-2]
    stages = dict(
        part.split(" ", 1) for part in done.removeprefix("4 of 9 jobs done: ").split("; ")
    )
    assert {stage: set(names.split(", ")) for stage, names in stages.items()} == {
        "finetune": {"a", "c"},
        "evaluate": {"a", "c"},
    }
    assert sorted(failed) == ["failed: finetune b: no b", "failed: finetune d: no d"]


@pytest.mark.long
@pytest.mark.parametrize("option", ["--logger-moray-plain", "--dry-run"])
def test_snakemakes_own_messages_are_an_option_away(option: str, folder: Path) -> None:
    done = subprocess.run(
        command(option), cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert re.search(r"^Job \d+: make it\nReason: ", done.stdout + done.stderr, re.M)


def test_the_reason_of_a_job_names_the_keys_that_changed(folder: Path) -> None:
    params = """code="code 1", cfg={"train": {"seed": 0, "text": "a; b now: c"}}"""
    snakefile = SNAKEFILE.replace('"make it"', f'"make it"\n    params: {params}')
    (folder / "Snakefile").write_text(snakefile)
    printed(folder, "made")
    (folder / "Snakefile").write_text(snakefile.replace("code 1", "code 2").replace(": 0", ": 7"))
    done = subprocess.run(
        command("made", "--dry-run"),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    (changes,) = re.findall("^Reason: Params .*execution: (.*)$", done.stdout + done.stderr, re.M)
    assert set(changes.strip().split(", ")) == {"train.seed (0 → 7)", "code (1 → 2)"}


@pytest.mark.long
def test_only_a_terminal_has_colors_and_sees_what_begins(folder: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(), cwd=folder, env=environment(), stderr=theirs) as process:
        os.close(theirs)
        text = b""
        # At the end, reading fails.
        try:
            while part := os.read(ours, 4096):
                text += part
        except OSError:
            pass
        os.close(ours)
    assert process.returncode == 1
    assert b"\033[2mmake it ...\033[0m" in text
    assert b"\033[31mfailed: break it" in text
    assert "\033" not in printed(folder, "--forceall")
