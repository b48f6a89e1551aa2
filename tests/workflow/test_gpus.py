"""GPUs and Ray clusters as resources of the rules; counted, so that neither has to exist."""

import re
import subprocess
from pathlib import Path

import pytest
from project import ROOT, Project

# Jobs that can't run at the same time.
SNAKEFILE = """
configfile: "config/config.yaml"

include: "workflow/rules/common.smk"
include: "workflow/rules/resources.smk"

rule both:
    input: "done-1", "done-2"

rule one:
    output: touch("done-{number}")
    resources: RESOURCE=1
    shell: "mkdir running && sleep 0.5 && rmdir running"
"""


def run(
    project: Project, resource: str, gpus: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    (project.folder / "counted.smk").write_text(SNAKEFILE.replace("RESOURCE", resource))
    return subprocess.run(
        ["snakemake", "--snakefile", "counted.smk", "--cores", "2", *arguments, "both"],
        cwd=project.folder,
        env=project.environment() | {"CUDA_VISIBLE_DEVICES": gpus},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("resource", "gpus", "arguments", "alone"),
    [
        ("gpu", "0", [], True),
        ("gpu", "0,1", [], False),
        ("gpu", "0,1", ["--resources", "gpu=1", "--"], True),
        ("ray", "", [], True),
        ("ray", "", ["--resources", "ray=2", "--"], False),
    ],
)
def test_jobs_wait_for_a_gpu_or_a_cluster_that_is_taken(
    tmp_path: Path, resource: str, gpus: str, arguments: list[str], alone: bool
) -> None:
    done = run(Project.create(tmp_path / "project"), resource, gpus, *arguments)
    assert (done.returncode == 0) == alone, done.stderr


def reached(file: Path, seen: set[str]) -> set[str]:
    """The modules of the package that a file imports, directly or through others."""
    for module in re.findall(r"^ *from moray\.(\S+) import", file.read_text(), re.M):
        own = ROOT / f"src/moray/{module.replace('.', '/')}.py"
        if module not in seen and own.exists():
            seen.add(module)
            reached(own, seen)
    return seen


def stages(script: Path) -> list[Path]:
    """A script, and the modules of tasks that it imports by name."""
    names = re.findall(r'module_of\(.+?, "(\w+)"\)', script.read_text())
    return [script, *(file for name in names for file in ROOT.glob(f"src/moray/tasks/*/{name}.py"))]


def test_each_rule_says_what_its_jobs_need_and_which_section_has_its_workers() -> None:
    with_workers, named = set(), set()
    for file in (ROOT / "workflow/rules").glob("*.smk"):
        for rule, body in re.findall(r"^rule (\w+):\n((?:[ \n].*\n?)*)", file.read_text(), re.M):
            script = re.search(r"scripts/\w+\.py", body)
            if not script:
                continue
            needs = re.search(r"\*\*needs\((.*?)\),\n    \w", body, re.S)
            assert needs, rule
            files = stages(ROOT / "workflow" / script[0])
            if any("workers.run" in reached(file, set()) for file in files):
                with_workers.add(rule)
            if "workers=" in needs[1]:
                named.add(rule)
    assert named == with_workers
