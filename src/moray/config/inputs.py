"""Inputs of stages: how the user's files count, and what is said of files that are missing."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from moray.config.schema.experiment import Experiment
from moray.errors import UserError
from moray.provenance.contents import contents_of

CHECK_PATH = "check the path; it is relative to the working directory"
# More files have one digest in common, which keeps params and dry runs short.
_MOST_LISTED = 50


def with_contents(cfg: dict[str, Any], files: Iterable[str], keep: bool) -> dict[str, Any]:
    """The param `cfg` of a stage that reads files of the user, with their digests.

    It depends neither on where the files are mounted nor on their times.

    Args:
        keep: whether to keep the digests for the next start of the workflow.
    """
    digests = contents_of(files, keep)
    if not digests:
        return cfg
    if len(digests) > _MOST_LISTED:
        whole = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]
        digests = {f"{len(digests):,} files": whole}
    state = {**cfg.get("state", {}), "files": digests}
    return dict(sorted({**cfg, "state": state}.items()))


def missing_file_error(experiment: Experiment, dataset: str, file: str) -> UserError:
    """The error for a path of a dataset at which there is no file, and which no rule makes."""
    keys = chain(*(keys.items() for keys in experiment.datasets[dataset].files.values()))
    key = next(key for key, paths in keys if file in paths)
    problem = f"there is no file {file}, and no rule makes it"
    return UserError(f"datasets.{dataset}.{key}", problem, CHECK_PATH)


def retraining_error(run: str, record: str, missing: Sequence[str]) -> UserError:
    """The error for a finished run that would be trained again because files are gone.

    Args:
        record: the file by which it would be.
        missing: the outputs that have to be made again.
    """
    return UserError(
        f"runs.{run}",
        f"is trained, and would be trained again because {', '.join(missing)} "
        f"{'are' if len(missing) > 1 else 'is'} gone",
        f"run snakemake {' '.join(missing)} alone first, and the same command then; or add "
        f"--forcerun {record} to train it again",
    )
