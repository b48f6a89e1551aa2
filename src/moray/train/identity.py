"""What the weights of a run depend on, and how one run differs from another."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from moray.config.schema import Adapter, Train, result_keys
from moray.provenance.digest import fingerprint, sha256_file
from moray.provenance.manifest import MANIFEST, write_json
from moray.provenance.versions import software

_FILE = "identity.json"
_LIBRARIES = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class Identity:
    """What the weights of a run depend on.

    Attributes:
        settings: the keys of the sections `adapter` and `train` that change the result, and
            sections that batches depend on.
        data: SHA-256 of the token store's manifest.
        start: SHA-256 of the manifest of the model that the run starts from.
        code: digest of the code.
        libraries: versions, by name.
    """

    settings: dict[str, Any]
    data: str
    start: str
    code: str
    libraries: dict[str, str]

    @property
    def fingerprint(self) -> str:
        """One digest of everything, hexadecimal, 16 digits."""
        return fingerprint([self.settings, self.code, self.libraries], [self.start, self.data])


def identity_of(
    settings: Train,
    adapter: Adapter | None,
    start: Path,
    store: Path,
    code: str,
    task_settings: Mapping[str, Any] = MappingProxyType({}),
) -> Identity:
    """The identity of a run with these settings, on these folders."""
    versions = software()
    adapted = adapter and result_keys(adapter)
    return Identity(
        settings={"adapter": adapted, "train": result_keys(settings), **task_settings},
        data=sha256_file(store / MANIFEST),
        start=sha256_file(start / MANIFEST),
        code=code,
        libraries={name: versions[name] for name in _LIBRARIES},
    )


def write_identity(identity: Identity, work: Path) -> None:
    """Record an identity in the work folder of its run."""
    work.mkdir(parents=True, exist_ok=True)
    write_json(work / _FILE, asdict(identity))


def read_identity(work: Path) -> Identity | None:
    """The identity recorded in a work folder; None if an earlier version of moray made it."""
    path = work / _FILE
    return Identity(**json.loads(path.read_text())) if path.exists() else None


def differences(before: Identity | None, after: Identity) -> list[str]:
    """What differs between two identities, as text; keys and libraries by name."""
    if before is None:
        return ["unknown, made by an earlier version of moray"]
    return [
        *_changes(before.settings, after.settings),
        *(
            part
            for part in ("data", "start", "code")
            if getattr(before, part) != getattr(after, part)
        ),
        *_changes(before.libraries, after.libraries),
    ]


def _changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    old, new = dict(_flat(before)), dict(_flat(after))
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield f"{key} ({_word(old.get(key))} → {_word(new.get(key))})"


def _flat(mapping: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _word(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
