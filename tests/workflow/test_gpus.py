"""GPUs as a resource of the rules; counted, so that none has to be there."""

import subprocess
from pathlib import Path

import pytest
from project import Project

# Jobs that can't run at the same time.
SNAKEFILE = """
configfile: "config/config.yaml"

include: "workflow/rules/common.smk"

rule both:
    input: "done-1", "done-2"

rule one:
    output: touch("done-{number}")
    resources: gpu=1
    shell: "mkdir running && sleep 0.5 && rmdir running"
"""


def run(project: Project, gpus: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (project.folder / "counted.smk").write_text(SNAKEFILE)
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
    ("gpus", "arguments", "alone"),
    [
        ("0", [], True),
        ("0,1", [], False),
        ("0,1", ["--resources", "gpu=1", "--"], True),
    ],
)
def test_jobs_wait_for_a_gpu_that_is_taken(
    tmp_path: Path, gpus: str, arguments: list[str], alone: bool
) -> None:
    done = run(Project.create(tmp_path / "project"), gpus, *arguments)
    assert (done.returncode == 0) == alone, done.stderr
