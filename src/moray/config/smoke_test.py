"""The short keys of `config/smoke-test.yaml`, for `snakemake --config`."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from moray.config.schema import Experiment
from moray.errors import UserError

RUN = "smoke-test"

_PLACES = {
    "address": ("defaults", "ray", "address"),
    "size_gb": ("datasets", "made-up", "size_gb"),
    "workers": ("defaults", "ray", "num_workers"),
}


def with_short_keys_resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a smoke test with the short keys that are given in their places.

    Any other config is returned as it is, so that such a key in it is reported as unknown.
    """
    resolved: dict[str, Any] = deepcopy(dict(config))
    if RUN not in (resolved.get("runs") or {}):
        return resolved
    for key in _PLACES.keys() & resolved.keys():
        *parents, last = _PLACES[key]
        section = resolved
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = resolved.pop(key)
    return resolved


def check_storage(experiment: Experiment) -> None:
    """Check that a smoke test, if the experiment is one, has a folder for its checkpoints.

    Raises:
        UserError: if it has an object store, whose files the measurement doesn't see.
    """
    run = experiment.runs.get(RUN)
    if run and run.ray.in_object_store:
        raise UserError(
            f"runs.{RUN}.ray.storage_path",
            f"got {run.ray.storage_path}, but the smoke test needs a folder",
            "set it to a folder that all nodes share",
        )
