"""What a user does wrong costs one line, at once, and leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from project import Project


def test_a_wrong_config_costs_one_line(fresh: Project) -> None:
    fresh.configure(["runs", "tuned", "train"], {"learnig_rate": 1})
    done = fresh.snakemake("finetune")
    assert done.returncode != 0
    reported = [text for text in done.stderr.splitlines() if "profile" not in text]
    assert reported == ["runs.tuned.train.learnig_rate: unknown key; did you mean learning_rate?"]
    assert not (fresh.folder / "results").exists()


def test_a_config_that_is_not_utf_8_costs_one_line(fresh: Project) -> None:
    fresh.config.write_bytes(fresh.config.read_bytes() + "# café\n".encode("latin-1"))
    done = fresh.snakemake("finetune")
    assert done.returncode != 0
    reported = [text for text in done.stderr.splitlines() if "profile" not in text]
    number = fresh.config.read_bytes().count(b"\n")
    assert reported == [
        f"config/config.yaml, line {number}: byte 0xe9 is not valid UTF-8; save the file as UTF-8"
    ]


@pytest.mark.long
def test_what_snakemake_would_read_in_silence_costs_one_line(fresh: Project) -> None:
    for name in ("a", "b"):
        (fresh.folder / f"{name}.yaml").write_text("runs: {tuned: null}\n")
    overlays = ("--configfile", "a.yaml", "--configfile", "b.yaml")
    done = fresh.snakemake("--dry-run", "finetune", *overlays)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        "--configfile: is given 2 times, and Snakemake keeps only the last; write --configfile "
        "a.yaml b.yaml"
    )
    (fresh.folder / "b.yaml").write_text("runs: {tuned: null}\nruns: {base: null}\n")
    done = fresh.snakemake("--dry-run", "finetune", "--configfile", "a.yaml", "b.yaml")
    assert done.stderr.splitlines()[-1] == (
        "b.yaml, line 2: the key runs is in line 1 already, and only the last one would count; "
        "remove one of them"
    )
    made = fresh.folder / "made"
    evaluated = f"__use_yte__: true\n__definitions__:\n- open({str(made)!r}, 'w')\n"
    fresh.config.write_text(evaluated + fresh.config.read_text())
    done = fresh.snakemake("--dry-run", "finetune")
    assert done.stderr.splitlines()[-1] == (
        "config/config.yaml, line 1: __use_yte__ runs code that is in the config; write the values"
    )
    assert not made.exists()


def test_a_dry_run_refuses_what_the_run_would(fresh: Project) -> None:
    fresh.configure(["runs", "base", "adapter"], {"rank": 2, "target_modules": ["q_porj"]})
    reported = [
        [text for text in done.stderr.splitlines() if text.startswith("runs.")]
        for done in (fresh.snakemake("finetune"), fresh.snakemake("--dry-run", "finetune"))
    ]
    assert len(reported[0]) == 1
    assert reported[0][0].startswith("runs.base.adapter.target_modules")
    assert reported[1] == reported[0]


def test_too_many_workers_are_refused_before_the_first_job(fresh: Project) -> None:
    fresh.configure(["defaults", "train", "global_batch_size"], 4096)
    fresh.configure(["defaults", "ray", "num_workers"], 4096)
    done = fresh.snakemake("finetune")
    assert done.returncode != 0
    line = next(text for text in done.stderr.splitlines() if "4096" in text)
    assert line.startswith("runs.base.ray.num_workers: 4096 workers with 1 CPU each need 4096")
    assert "Traceback" not in done.stderr
    assert not (fresh.folder / "results/datasets").exists()


def test_a_failing_stage_costs_one_line_and_its_log_has_the_trace(fresh: Project) -> None:
    (fresh.folder / "data/modules.jsonl").write_text('{"content": "x"}\n')
    done = fresh.snakemake("results/datasets/modules/dataset.json")
    assert done.returncode != 0
    reported = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert reported == [
        "error: data/modules.jsonl, line 1: got columns content, expected text; "
        "name it under columns, as in {output: answer}, or choose another format"
    ]
    assert "Traceback" not in done.stderr
    assert "Traceback" in (fresh.folder / "logs/download/modules.log").read_text()
    assert not list((fresh.folder / "results/datasets/modules").glob("*"))


@pytest.mark.release
def test_a_row_that_the_chat_template_refuses_is_named_in_the_user_s_file(fresh: Project) -> None:
    said = {"role": "assistant", "content": "yes"}
    talks = [[{"role": "user", "content": f"{number}?"}, said] for number in range(20)]
    talks[12] = [{"role": "user", "content": "Nobody there?"}, said, said]
    lines = [json.dumps({"messages": talk}) + "\n" for talk in talks]
    (fresh.folder / "data/talks.jsonl").write_text("".join(lines))
    source = {"source": "files", "path": "data/talks.jsonl", "test_share": 0.2}
    fresh.configure(["datasets", "talks"], source | {"format": "messages"})
    template = "{% for m in messages %}{% if m.role == 'assistant' and loop.index0 % 2 == 0 %}"
    template += "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    template += "{{ m.content + eos_token }}{% endfor %}"
    run = {"model": "tiny", "dataset": "talks", "data": {"chat_template": template}}
    fresh.configure(["runs"], {"talks": run})
    done = fresh.snakemake("data")
    assert done.returncode != 0
    reported = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert reported == [
        "error: data/talks.jsonl, line 13: the chat template fails (TemplateError: Conversation "
        r"roles must alternate), in the conversation that begins 'Nobody there?\nyes\nyes'; "
        "fix data.chat_template or remove the row"
    ]


def test_a_python_whose_path_has_a_space_costs_one_line(fresh: Project, tmp_path: Path) -> None:
    """Neither Snakemake nor Ray could start it."""
    venv = tmp_path / "a b"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin/python"
    done = subprocess.run(
        [python, "-m", "snakemake", "--cores", "1", "finetune"],
        cwd=fresh.folder,
        env=fresh.environment() | {"PYTHONPATH": ":".join([f"{fresh.folder}/src", *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    reported = [text for text in done.stderr.splitlines() if "profile" not in text]
    assert reported == [
        f"{python}: the path of Python has a space or a sign that shells read, so jobs can't start "
        "it; move its folder"
    ]
    assert not (fresh.folder / "logs").exists()
