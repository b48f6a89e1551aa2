"""Another workflow, in a folder of its own, uses this one as a module."""

import shutil
import signal
from pathlib import Path

import pytest
import yaml
from faults.workflows import run_and_signal
from project import EXPERIMENT, Project

SNAKEFILE = """
configfile: "config.yaml"


module moray:
    snakefile:
        "../tools/moray/Snakefile"
    config:
        config["moray"]


use rule * from moray as moray_*


rule study:
    default_target: True
    input:
        rules.moray_eval.input,


onstart:
    moray.onstart()
"""

RULE = """

rule rows:
    input:
        "raw/{name}.jsonl",
    output:
        "data/{name}.jsonl",
    message:
        "make {wildcards.name}"
    shell:
        "cp {input} {output}"
"""


class Study(Project):
    """The other workflow; its environment has the package of the module."""

    def environment(self) -> dict[str, str]:
        """With the module's package in front of the installed one."""
        source = self.folder.parent / "tools/moray/src"
        return super().environment() | {"PYTHONPATH": str(source)}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "tools").mkdir()
    moray = Project.create(tmp_path / "tools/moray")
    # Neither its config nor anything else of the module's own folder is read.
    moray.config.unlink()
    folder = tmp_path / "study"
    folder.mkdir()
    shutil.move(moray.folder / "data", folder / "data")
    (folder / "Snakefile").write_text(SNAKEFILE)
    config = {"moray": yaml.safe_load(EXPERIMENT)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    study = Study(folder)
    study.config = folder / "config.yaml"
    return study


@pytest.mark.long
def test_the_other_workflow_plans_and_runs_the_stages_with_its_own_config(study: Study) -> None:
    jobs = study.affected("--cores", "1")
    runs = ("base", "tuned")
    assert jobs == {
        *(f"{stage} {run}" for stage in ("finetune", "export", "evaluate") for run in runs),
        *(
            f"{stage} {data}"
            for stage in ("download", "tokenize")
            for data in ("modules", "functions")
        ),
        "base model tiny",
    }
    done = study.snakemake("--cores", "1", "results/datasets/modules/dataset.json")
    assert done.returncode == 0, done.stderr
    assert (study.folder / "results/datasets/modules/train.parquet").exists()
    assert not (study.folder.parent / "tools/moray/results").exists()


@pytest.mark.long
def test_a_rule_of_the_other_workflow_makes_the_rows(study: Study) -> None:
    (study.folder / "data").rename(study.folder / "raw")
    with (study.folder / "Snakefile").open("a") as file:
        file.write(RULE)
    dataset, rows = "results/datasets/modules/dataset.json", study.folder / "raw/modules.jsonl"
    both = {"make modules", "download modules"}
    assert study.planned("--cores", "1", dataset) == both
    done = study.snakemake("--cores", "1", dataset)
    assert done.returncode == 0, done.stderr
    assert study.planned("--cores", "1", dataset) == set()
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-1]))
    assert study.planned("--cores", "1", dataset) == both
    done = study.snakemake("--cores", "1", dataset)
    assert done.returncode == 0, done.stderr
    assert study.planned("--cores", "1", dataset) == set()
    study.configure(["moray", "datasets", "modules", "path"], "data/modles.json")
    done = study.snakemake("--dry-run", "--cores", "1", dataset)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        "datasets.modules.path: there is no file data/modles.json, and no rule makes it; check "
        "the path; it is relative to the working directory"
    )


@pytest.mark.long
def test_a_change_of_the_modules_code_is_seen(study: Study) -> None:
    target = "results/datasets/modules/dataset.json"
    assert study.snakemake("--cores", "1", target).returncode == 0
    with (study.folder.parent / "tools/moray/src/moray/corpus/split.py").open("a") as file:
        file.write("CHANGED = True\n")
    assert study.planned("--cores", "1", target) == {"download modules"}


@pytest.mark.long
def test_the_other_workflow_can_have_all_runs_checked_before_the_first_job(study: Study) -> None:
    study.configure(["moray", "defaults", "train", "global_batch_size"], 4096)
    study.configure(["moray", "defaults", "ray", "num_workers"], 4096)
    done = study.snakemake("--cores", "1")
    assert done.returncode != 0
    line = next(text for text in done.stderr.splitlines() if "4096" in text)
    assert line.startswith("runs.base.ray.num_workers: 4096 workers with 1 CPU each need 4096")
    assert not (study.folder / "results/datasets").exists()


@pytest.mark.release
def test_the_other_workflow_can_pass_on_sigterm(study: Study) -> None:
    study.configure(["moray", "defaults", "train", "max_steps"], 2000)
    stopped = run_and_signal(
        study, "snakemake", 2, signal.SIGTERM, "base", ("snakemake", "--cores", "1")
    )
    assert stopped.returncode != 0
    (line,) = [text for text in stopped.stderr.splitlines() if "stopped at step" in text]
    assert line.startswith("runs.base: stopped at step ")
    assert "saved a checkpoint" in line


def test_a_workflow_that_is_not_the_packages_own_is_refused(study: Study, tmp_path: Path) -> None:
    other = Project.create(tmp_path / "other")
    text = (study.folder / "Snakefile").read_text().replace("../tools/moray", str(other.folder))
    (study.folder / "Snakefile").write_text(text)
    done = study.snakemake("--dry-run", "--cores", "1")
    assert done.returncode != 0
    package = study.folder.parent / "tools/moray/src/moray"
    assert f"moray: the package is imported from {package}, which is not" in done.stderr
    assert f"pip install -e {other.folder}" in done.stderr
