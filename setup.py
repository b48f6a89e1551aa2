"""Puts the workflow, which lies at the top of the repository, into the package of a wheel.

All else about the package is in pyproject.toml. setuptools can't take data files of a package from
outside of its folder.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

TOP = Path(__file__).parent
WORKFLOW = ("Snakefile", "config", "docs/configuration.md", "envs", "profiles", "workflow")


class BuildWithWorkflow(build_py):
    """Also copies the workflow. An editable install uses it where it is."""

    def run(self) -> None:
        """Copy to moray/workflow."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "moray/workflow")
        # What an earlier build has left there may not exist any more.
        shutil.rmtree(target, ignore_errors=True)
        for name in WORKFLOW:
            source, copy = TOP / name, target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy)


setup(cmdclass={"build_py": BuildWithWorkflow})
