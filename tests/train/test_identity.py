import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from moray.config.schema.train import Adapter, Train
from moray.provenance.manifest import write_manifest
from moray.storage.folder import FolderRecords
from moray.train.identity import (
    Identity,
    differences,
    identity_of,
    other_libraries,
    read_identity,
    write_identity,
)
from moray.train.spec import Part, RunSpec

IDENTITY = Identity(
    settings={"adapter": None, "train": {"learning_rate": 0.1, "max_steps": 8}},
    data="d",
    start="s",
    code="c",
    libraries={"torch": "2.13.0", "peft": "0.21.2"},
)


def settings(adapter: object = None, **train: object) -> Identity:
    return replace(IDENTITY, settings={"adapter": adapter, "train": train})


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (
            settings(learning_rate=0.2, max_steps=8),
            ["train.learning_rate (0.1 → 0.2)"],
        ),
        (
            settings(learning_rate=0.2, max_steps=None),
            ["train.learning_rate (0.1 → 0.2)", "train.max_steps (8 → none)"],
        ),
        (
            settings({"rank": 8}, learning_rate=0.1, max_steps=8),
            ["adapter.rank (none → 8)"],
        ),
        (settings(learning_rate=0.1), ["train.max_steps (8 → none)"]),
        (replace(IDENTITY, data="e"), ["data"]),
        (replace(IDENTITY, start="e"), ["start"]),
        (replace(IDENTITY, code="e"), ["code"]),
        (replace(IDENTITY, data="e", code="e"), ["data", "code"]),
    ],
)
def test_each_part_changes_the_fingerprint_and_is_named(other: Identity, named: list[str]) -> None:
    assert other.fingerprint != IDENTITY.fingerprint
    assert differences(IDENTITY, other) == named
    assert differences(other, other) == []


def test_libraries_are_recorded_and_not_compared(tmp_path: Path) -> None:
    newer = replace(IDENTITY, libraries={"torch": "2.14.0", "peft": "0.21.2"})
    assert newer.fingerprint == IDENTITY.fingerprint
    assert differences(IDENTITY, newer) == []
    assert newer.after(None, 0) == newer.after(IDENTITY, 0) == newer
    assert IDENTITY.after(IDENTITY, 4) == IDENTITY
    records = FolderRecords(tmp_path)
    write_identity(newer.after(IDENTITY, 4), records)
    found = read_identity(records)
    assert found is not None
    assert found.earlier_libraries == ({"until_step": 4, "libraries": IDENTITY.libraries},)
    assert other_libraries(found, 4) == (
        "continues at step 4 under other versions of libraries: torch (2.13.0 → 2.14.0)"
    )
    # A later start under the same libraries has nothing to say.
    assert newer.after(found, 6) == found
    assert other_libraries(found, 6) is None
    again = IDENTITY.after(found, 8)
    assert [entry["until_step"] for entry in again.earlier_libraries] == [4, 8]


def test_an_identity_is_recorded_and_read_back(tmp_path: Path) -> None:
    records = FolderRecords(tmp_path / "run/fingerprint")
    write_identity(IDENTITY, records)
    assert read_identity(records) == IDENTITY
    assert read_identity(FolderRecords(tmp_path)) is None
    assert "an earlier version of moray" in differences(None, IDENTITY)[0]


def of(start: Path, tokens: Path, train: Train, adapter: Adapter | None = None) -> Identity:
    return identity_of(RunSpec("name", start, (Part("data", tokens),), train, adapter, code="c"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda start, tokens: of(start, tokens, Train()), []),
        (lambda start, tokens: of(start, tokens, Train(micro_batch_size=1)), []),
        (lambda start, tokens: of(start, tokens, Train(seed=1)), ["train.seed (0 → 1)"]),
        (
            lambda start, tokens: of(start, tokens, Train(resume_from_checkpoint="x")),
            ["train.resume_from_checkpoint (none → x)"],
        ),
        (lambda start, tokens: of(tokens, start, Train()), ["data", "start"]),
    ],
)
def test_an_identity_is_that_of_settings_and_folders(
    tmp_path: Path, change: Callable[[Path, Path], Identity], named: list[str]
) -> None:
    start, tokens = tmp_path / "start", tmp_path / "tokens"
    for folder in (start, tokens):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
        write_manifest(folder)
    before = of(start, tokens, Train())
    assert differences(before, change(start, tokens)) == named
    moved = Path(shutil.move(start, tmp_path / "elsewhere"))
    assert of(moved, tokens, Train()) == before
