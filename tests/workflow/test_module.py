"""Another workflow, in a folder of its own, uses this one as a module."""

import shutil
from pathlib import Path

import pytest
import yaml
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


def test_the_other_workflow_plans_and_runs_the_stages_with_its_own_config(study: Study) -> None:
    jobs = {job.partition("-tiny-")[0] for job in study.planned("--cores", "1")}
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


def test_a_change_of_the_modules_code_is_seen(study: Study) -> None:
    target = "results/datasets/modules/dataset.json"
    assert study.snakemake("--cores", "1", target).returncode == 0
    with (study.folder.parent / "tools/moray/src/moray/corpus/split.py").open("a") as file:
        file.write("CHANGED = True\n")
    assert study.planned("--cores", "1", target) == {"download modules"}
