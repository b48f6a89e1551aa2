"""The locked environment and its conda twin."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "envs/requirements.txt").read_text()
PINS = [line for line in LOCK.splitlines() if not line.startswith("#")]


def test_the_conda_twin_has_the_same_versions() -> None:
    twin = yaml.safe_load((ROOT / "envs/environment.yaml").read_text())
    assert twin["dependencies"][-1]["pip"] == PINS


def test_every_dependency_of_the_project_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[\[>=<]", requirement)[0].lower() for requirement in wanted}
    assert names <= {pin.partition("==")[0] for pin in PINS}


@pytest.mark.parametrize("name", ["ray", "snakemake", "torch", "transformers"])
def test_what_runs_is_what_is_locked(name: str) -> None:
    """A local part such as `+cpu` names the build of a version, not another version."""
    assert f"{name}=={version(name).partition('+')[0]}" in PINS


def test_the_lock_names_versions_and_no_places() -> None:
    assert all(re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.]+", pin) for pin in PINS)
