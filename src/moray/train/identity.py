"""What the weights of a run depend on, and how one run differs from another."""

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from moray.config.schema.base import result_keys
from moray.provenance.lineage import software
from moray.provenance.manifest import MANIFEST, as_json, fingerprint, sha256_file
from moray.storage.interface import Records
from moray.tracking.interface import flat
from moray.train.spec import Part, RunSpec

_FILE = "identity.json"
_ID = "id"
_LIBRARIES = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class Identity:
    """What the weights of a run depend on.

    Attributes:
        settings: the keys that change the result, of `adapter`, `train` and the task's sections.
        data: SHA-256 of the manifest of its rows' store; of several stores, a digest with shares.
        start: SHA-256 of the manifest of the model that the run starts from.
        libraries: versions, by name. Recorded, not compared.
        earlier_libraries: those of earlier starts, each with the step that it ended at.
    """

    settings: dict[str, Any]
    data: str
    start: str
    code: str
    libraries: dict[str, str]
    earlier_libraries: tuple[dict[str, Any], ...] = ()

    @property
    def fingerprint(self) -> str:
        """One digest of everything but the libraries, hexadecimal, 16 digits."""
        return fingerprint([self.settings, self.code], [self.start, self.data])

    def after(self, before: "Identity | None", step: int) -> "Identity":
        """The identity of the run with the libraries of its earlier starts.

        The last one recorded the identity `before`, and ended at a step.
        """
        if before is None or step == 0:
            return self
        earlier = before.earlier_libraries
        if before.libraries != self.libraries:
            earlier = (*earlier, {"until_step": step, "libraries": before.libraries})
        return replace(self, earlier_libraries=earlier)


def identity_of(spec: RunSpec) -> Identity:
    """The identity of a run, whose folders are there."""
    versions = software()
    adapter = spec.adapter and result_keys(spec.adapter)
    return Identity(
        settings={"adapter": adapter, "train": result_keys(spec.settings), **spec.task_settings},
        data=_data(spec.parts),
        start=sha256_file(spec.start / MANIFEST),
        code=spec.code,
        libraries={name: versions[name] for name in _LIBRARIES},
    )


def _data(parts: Sequence[Part]) -> str:
    manifests = [sha256_file(part.store / MANIFEST) for part in parts]
    if len(parts) == 1:
        return manifests[0]
    return fingerprint([[part.dataset, part.share] for part in parts], manifests)


def write_identity(identity: Identity, records: Records) -> None:
    """Record an identity beside the checkpoints of its run."""
    records.write(_FILE, as_json(asdict(identity)))


def read_identity(records: Records) -> Identity | None:
    """The identity recorded beside checkpoints; None if an earlier version of moray made them."""
    content = records.read(_FILE)
    if content is None:
        return None
    facts = json.loads(content)
    # Tuples are lists there.
    return Identity(**facts | {"earlier_libraries": tuple(facts.get("earlier_libraries", ()))})


def id_of_training(records: Records) -> str:
    """What trackers know the training by, made at its first start."""
    content = records.read(_ID)
    if content is None:
        content = uuid.uuid4().hex[:12].encode()
        records.write(_ID, content)
    return content.decode()


def differences(before: Identity | None, after: Identity) -> list[str]:
    """What differs between two identities, as text; keys by name. Libraries may differ."""
    if before is None:
        return ["unknown, made by an earlier version of moray"]
    return [
        *_changes(before.settings, after.settings),
        *(
            part
            for part in ("data", "start", "code")
            if getattr(before, part) != getattr(after, part)
        ),
    ]


def other_libraries(identity: Identity, step: int) -> str | None:
    """What differs if a run continues at a step under other libraries than it had until then."""
    earlier = identity.earlier_libraries
    if not earlier or earlier[-1]["until_step"] != step:
        return None
    changed = ", ".join(_changes(earlier[-1]["libraries"], identity.libraries))
    return f"continues at step {step} under other versions of libraries: {changed}"


def _changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    old, new = flat(before, "."), flat(after, ".")
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield f"{key} ({_word(old.get(key))} → {_word(new.get(key))})"


def _word(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
