"""The short keys of `config/smoke-test.yaml`, for `snakemake --config`."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

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
