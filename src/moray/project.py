"""The place of the workflow, and project folders that use it from there."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from moray.errors import UserError

_PACKAGE = Path(__file__).parent


def _workflow() -> Path:
    """A wheel has the workflow in the package; a clone has the package in the workflow."""
    packaged = _PACKAGE / "workflow"
    return packaged if packaged.is_dir() else _PACKAGE.parents[1]


# The folder that has the workflow's Snakefile, and what belongs to it.
WORKFLOW = _workflow()
SNAKEFILE = WORKFLOW / "Snakefile"
LOCK = WORKFLOW / "envs/requirements.txt"

_OWN_SNAKEFILE = '''"""moray's workflow with this folder's config. Rules of your own can follow."""

from moray.project import SNAKEFILE


configfile: "config/config.yaml"


module moray:
    snakefile:
        SNAKEFILE
    config:
        config


use rule * from moray


onstart:
    # Checks all runs before the first job; at SIGTERM, a running training saves a checkpoint.
    moray.onstart()
'''
# The overlays of the config and the cluster profiles too, so that what the documentation shows for
# a clone works.
_COPIED = ("config", "docs/configuration.md", "profiles")


def init(folder: Path) -> None:
    """Make a project folder: a Snakefile that uses the workflow as a module, config, profiles.

    Raises:
        UserError: if there is something in its place, or it can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(str(folder), "not empty", "choose a new folder")
        with TemporaryDirectory(dir=folder, prefix=".moray-") as temporary:
            draft = Path(temporary)
            for name in _COPIED:
                source, copy = WORKFLOW / name, draft / name
                copy.parent.mkdir(exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, copy)
                else:
                    shutil.copy(source, copy)
            (draft / "Snakefile").write_text(_OWN_SNAKEFILE)
            for path in draft.iterdir():
                path.rename(folder / path.name)
    except FileExistsError as error:
        raise UserError(str(folder), "is a file", "choose a new folder") from error
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(
            str(folder), f"can't be written ({reason})", "choose another folder"
        ) from error
