"""The locked environment and its conda twin."""

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def _pins(name: str) -> list[str]:
    lines = (ROOT / "envs" / name).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


PINS = _pins("requirements.txt")
DEV_PINS = _pins("requirements-dev.txt")
CUDA_PINS = _pins("requirements-cuda.txt")


def _names(pins: list[str]) -> set[str]:
    return {pin.partition("==")[0] for pin in pins}


def test_the_conda_twin_has_the_same_versions() -> None:
    twin = yaml.safe_load((ROOT / "envs/environment.yaml").read_text())
    assert twin["dependencies"][-1]["pip"] == PINS


def _wanted(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[>=<]", requirement)[0].lower() for requirement in requirements}


def test_every_dependency_of_the_project_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert _wanted(project["dependencies"]) <= _names(PINS)
    assert _wanted(project["optional-dependencies"]["dev"]) <= _names(PINS + DEV_PINS)


def test_what_names_the_version_names_this_one() -> None:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == own
    assert yaml.safe_load((ROOT / "deploy/kuberay/values.yaml").read_text())["image"]["tag"] == own
    files = [ROOT / "README.md", ROOT / "Dockerfile", *(ROOT / "docs").glob("*.md")]
    files += (ROOT / "deploy").rglob("*.yaml")
    named = {
        file.name: set(re.findall(r"moray[:-](\d+\.\d+\.\d+)", file.read_text())) - {own}
        for file in files
    }
    assert {name: others for name, others in named.items() if others} == {}


def test_what_tests_need_is_locked_beside_what_runs() -> None:
    """One name in both could have two versions, and what runs isn't to carry what tests need."""
    assert not _names(PINS) & _names(DEV_PINS)


def test_what_a_build_for_cuda_brings_is_locked_apart() -> None:
    """So that requirements.txt installs with PyTorch's build for CPUs too."""
    start = ("cuda-", "nvidia-", "triton")
    assert all(name.startswith(start) for name in _names(CUDA_PINS))
    assert not any(name.startswith(start) for name in _names(PINS + DEV_PINS))


@pytest.mark.parametrize("name", ["ray", "snakemake", "torch", "transformers"])
def test_what_runs_is_what_is_locked(name: str) -> None:
    """A local part such as `+cpu` names the build of a version, not another version."""
    assert f"{name}=={version(name).partition('+')[0]}" in PINS


def test_the_lock_names_versions_and_no_places() -> None:
    assert all(
        re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.]+", pin) for pin in PINS + DEV_PINS + CUDA_PINS
    )


def test_a_clone_whose_path_has_a_space_costs_one_line_before_anything_is_installed(
    tmp_path: Path,
) -> None:
    clone = tmp_path / "a b"
    clone.mkdir()
    shutil.copy(ROOT / "Makefile", clone)
    done = subprocess.run(
        ["make", "finetune"], cwd=clone, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert f"*** {clone}: the path has a space, so jobs can't start Python; move the clone" in line
    assert [path.name for path in clone.iterdir()] == ["Makefile"]
