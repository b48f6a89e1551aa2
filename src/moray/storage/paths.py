"""Names of checkpoints and of the folders that hold them."""

from pathlib import Path

PREFIX = "step-"


def folder_of(work: Path) -> Path:
    """The checkpoint folder of a work folder."""
    return work / "checkpoints"


def name_of(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"{PREFIX}{step:08d}"


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / name_of(step)


def step_of(checkpoint: Path) -> int:
    """The number of steps done when a checkpoint was saved."""
    return int(checkpoint.name.removeprefix(PREFIX))
