"""A process that is killed while it uploads a checkpoint loses nothing that was saved before."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import FORKS
from stored import BucketPlace

from moray.extras.object_store.bucket import Commits, ObjectStorage
from moray.provenance.manifest import Files
from moray.storage.objects import open_objects
from moray.train.checkpoint import keep, resume

# Two parts and a bit, so that parts are uploaded.
PART = 5 * 2**20
WEIGHTS = bytes(range(256)) * (PART * 2 // 256 + 1)

Original = Callable[..., Any]


def _before(original: Original, *arguments: Any, **options: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _after(original: Original, *arguments: Any, **options: Any) -> Any:
    original(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)


def _second_part(original: Original, client: Any, operation: str, options: Any) -> Any:
    if operation == "UploadPart" and options["PartNumber"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(client, operation, options)


def _before_completion(original: Original, client: Any, operation: str, options: Any) -> Any:
    if operation == "CompleteMultipartUpload":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(client, operation, options)


# The class of the object store.
OBJECTS = ""
# What is reached in the upload of step 20, in whose place, and how; in the order of an upload. The
# last ones come after the commit.
POINTS: dict[str, tuple[Any, str, Original]] = {
    "before the first file": (OBJECTS, "upload", _before),
    "after a part": ("botocore.client:BaseClient", "_make_api_call", _second_part),
    "before the last part counts": (
        "botocore.client:BaseClient",
        "_make_api_call",
        _before_completion,
    ),
    "after the first file": (OBJECTS, "upload", _after),
    "after the files": (ObjectStorage, "persist", _after),
    "before the manifest": (Commits, "append", _before),
    "after the manifest": (Commits, "append", _after),
    "before old ones are removed": (keep, "remove_old", _before),
    "after the manifest of an old one is removed": (Commits, "remove", _after),
    "before what was left is removed": (OBJECTS, "abort_uploads", _before),
}
QUICK = ("before the manifest",)
MARKS = {"s3": pytest.mark.long, "gcs": pytest.mark.release}
COMMITTED = list(POINTS)[list(POINTS).index("after the manifest") :]


def write(storage: ObjectStorage, step: int) -> Files:
    attempt = storage.begin(step)
    names = {"model": WEIGHTS + bytes([step]), "optimizer": bytes([step])}
    paths = [storage.staging(attempt) / name for name in names]
    for path in paths:
        path.write_bytes(names[path.name])
    files = storage.persist(attempt, paths)
    storage.commit(step, attempt, files)
    return files


def die(folder: Path, url: str, point: str, environment: dict[str, str]) -> None:
    """Save step 10, and be killed at a point of the save of step 20."""
    # The process that is forked may have been started before the object store.
    os.environ.update(environment)
    from pkgutil import resolve_name

    from moray.extras.object_store import s3

    s3._PART = PART
    storage = ObjectStorage(folder, url, token=1)
    with storage.sole_writer():
        write(storage, 10)
        where, name, fault = POINTS[point]
        if isinstance(where, str):
            where = resolve_name(where) if where else type(open_objects(url))
        original = getattr(where, name)
        setattr(where, name, lambda *given, **named: fault(original, *given, **named))
        write(storage, 20)
        keep.remove_old(storage, keep=1)


# Each costs a process of its own. Parts of uploads to GCS are sent by compiled code.
@pytest.mark.parametrize(
    ("bucket", "point"),
    [
        pytest.param(kind, point, marks=[] if point in QUICK else MARKS[kind])
        for kind in ("s3", "gcs")
        for point in POINTS
        if kind == "s3" or " part" not in point
    ],
    indirect=["bucket"],
)
def test_an_upload_that_is_killed_costs_no_checkpoint(
    point: str, place: BucketPlace, tmp_path: Path
) -> None:
    process = FORKS.Process(target=die, args=(tmp_path / "node", place.url, point, {**os.environ}))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert bool(uploads(place)) == (" part" in point)

    storage, notes = place.opened(), list[str]()
    step = resume.resume_point(storage, notes)
    assert step == (20 if point in COMMITTED else 10)
    assert notes == []
    assert (storage.fetch(step) / "model").read_bytes() == WEIGHTS + bytes([step])

    # Nothing is left of what wasn't committed, parts of files included.
    kept = len(storage.steps())
    assert len(place.files()) == 2 * kept
    assert uploads(place) == set()


def uploads(place: BucketPlace) -> set[str]:
    """Files with parts that don't count."""
    keys = set[str]()

    def note(key: str) -> bool:
        keys.add(key)
        return False

    open_objects(place.url).abort_uploads("", note)
    return keys
