"""What a wheel brings, installed in an environment without a clone."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from project import ROOT, Project

pytestmark = pytest.mark.release

# What `git` has of the project and setuptools may look at.
SOURCES = (
    *("Snakefile", "config", "docs", "envs", "profiles", "src", "workflow"),
    *("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"),
)


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    whole = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=whole | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment's Python: it has the wheel, built from a source distribution, and no clone."""
    folder = tmp_path_factory.mktemp("wheel")
    clone = folder / "clone"
    clone.mkdir()
    for name in SOURCES:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, clone / name)
    build = "from setuptools.build_meta import build_sdist; build_sdist('..')"
    run(sys.executable, "-c", build, cwd=clone)
    shutil.rmtree(clone)
    (source,) = folder.glob("moray-*.tar.gz")
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", source, cwd=folder)
    (wheel,) = folder.glob("moray-*.whl")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin/python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    # The libraries, but not the editable package, of the environment in which tests run.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_a_project_made_by_init_runs_the_workflow_of_the_wheel(
    installed: Path, tmp_path: Path
) -> None:
    # Snakemake's command is one of the libraries' environment.
    snakemake = (installed, "-m", "snakemake")
    run(installed.parent / "moray", "init", "demo", cwd=tmp_path)
    demo = Project(tmp_path / "demo")
    planned = run(*snakemake, "-n", "finetune", cwd=demo.folder)
    assert "finetune tuned" in planned
    assert "tokenize" in planned

    small = Project.create(tmp_path / "small")
    shutil.copy(small.config, demo.config)
    small.folder.joinpath("data").rename(demo.folder / "data")
    run(*snakemake, "results/runs/base/model/manifest.json", cwd=demo.folder)
    assert (demo.folder / "results/runs/base/model/model.safetensors").exists()
    again = run(*snakemake, "results/runs/base/model/manifest.json", cwd=demo.folder)
    assert "Nothing to be done" in again

    where = "import moray; print(moray.__file__)"
    package = Path(run(installed, "-c", where, cwd=demo.folder).strip()).parent
    assert package.is_relative_to(installed.parent.parent)
    with (package / "corpus/split.py").open("a") as file:
        file.write("CHANGED = True\n")
    assert "download modules" in run(*snakemake, "-n", "finetune", cwd=demo.folder)
