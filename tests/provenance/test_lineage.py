"""What verification finds in a small chain: a source, a dataset, a base, a model, its scores."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pictures import image_folder, write_idx

from moray.errors import UserError
from moray.provenance.lineage import Verification, results_below, verify, write_sealed
from moray.provenance.manifest import sha256_file, write_manifest
from moray.stages.download import download

SOURCE, SPLIT = Path("data.jsonl"), Path("results/datasets/data/train.parquet")
BASE, MODEL = Path("results/models/base"), Path("results/runs/tuned/model")
SCORES = Path("results/runs/tuned/eval.json")
IMAGES = Path("results/datasets/images")


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The chain in the current directory."""
    monkeypatch.chdir(tmp_path)
    for folder in (SPLIT.parent, BASE, MODEL):
        folder.mkdir(parents=True)
    SOURCE.write_text("rows")
    SPLIT.write_text("split")
    description = SPLIT.with_name("dataset.json")
    facts = {
        "source": "files",
        "files": {str(SOURCE): sha256_file(SOURCE)},
        "splits": {"train": {"sha256": sha256_file(SPLIT)}},
    }
    description.write_text(json.dumps(facts))
    for folder in (BASE, MODEL):
        (folder / "model.safetensors").write_text(f"weights of {folder}")
        write_manifest(folder)
    base, model = BASE / "manifest.json", MODEL / "manifest.json"
    write_sealed(MODEL / "lineage.json", {"training": {}}, [model, base, description])
    write_sealed(SCORES, {"tuned": {"loss": 1.25}}, [base, model])
    return tmp_path


def flip(file: Path) -> None:
    """Change a bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def check(*paths: Path) -> Verification:
    return verify(paths)


@pytest.mark.usefixtures("chain")
def test_nothing_is_broken_in_what_was_left_alone() -> None:
    found = check(MODEL)
    assert (found.broken, found.missing) == ([], [])
    assert found.checked == [
        MODEL / "manifest.json",
        BASE / "manifest.json",
        SPLIT.with_name("dataset.json"),
    ]
    everything = results_below(Path("results"))
    assert len(everything) == 4
    assert check(*everything).broken == []


LINES = {
    SOURCE: "changed since results/datasets/data/dataset.json was made from it",
    SPLIT: "doesn't match its SHA-256 in results/datasets/data/dataset.json",
    BASE / "model.safetensors": "doesn't match its SHA-256 in results/models/base/manifest.json",
    MODEL / "model.safetensors": (
        "doesn't match its SHA-256 in results/runs/tuned/model/manifest.json"
    ),
    MODEL / "lineage.json": "doesn't match its own SHA-256",
}


@pytest.mark.usefixtures("chain")
@pytest.mark.parametrize("file", LINES, ids=str)
def test_a_flipped_bit_is_found_from_the_model(file: Path) -> None:
    flip(file)
    assert check(MODEL).broken == [f"{file}: {LINES[file]}"]


@pytest.mark.usefixtures("chain")
def test_edited_scores_are_found() -> None:
    assert check(SCORES).broken == []
    text = SCORES.read_text()
    SCORES.write_text(text.replace("1.25", "1.05"))
    assert check(SCORES).broken == [f"{SCORES}: doesn't match its own SHA-256"]
    SCORES.write_text(text[:-20])
    (line,) = check(SCORES).broken
    assert line.startswith(f"{SCORES}: damaged: isn't JSON (")


@pytest.mark.usefixtures("chain")
def test_a_base_that_was_made_again_is_not_that_of_the_model() -> None:
    (BASE / "model.safetensors").write_text("other weights")
    write_manifest(BASE)
    manifest = BASE / "manifest.json"
    assert check(BASE).broken == []
    by = f"{MODEL}/lineage.json was made from it"
    assert check(MODEL).broken == [f"{manifest}: changed since {by}"]
    shutil.rmtree(BASE)
    assert check(MODEL).broken == [f"{manifest}: not found, and {by}"]


@pytest.mark.usefixtures("chain")
def test_a_file_that_is_gone_is_broken_but_a_source_is_missing() -> None:
    (MODEL / "model.safetensors").unlink()
    SOURCE.unlink()
    found = check(MODEL)
    assert found.broken == [
        f"{MODEL}/model.safetensors: not found, but listed in {MODEL}/manifest.json"
    ]
    assert found.missing == [SOURCE]


def of_idx_files() -> list[Path]:
    """The sources of a dataset of IDX files in `results/datasets/images`."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 3, 4), dtype=np.uint8)
    images = write_idx(Path("images.gz"), pixels)
    labels = write_idx(Path("labels"), np.arange(20, dtype=np.uint8) % 2)
    download(IMAGES, {"source": "idx", "train": {"images": str(images), "labels": str(labels)}})
    return [images, labels]


def of_a_folder() -> list[Path]:
    """The sources of a dataset of a folder of images, with a split of its own."""
    for size, split in enumerate(("train", "test"), 4):
        image_folder(Path("photos", split), {"cat": 4, "dog": 4}, size, size)
    download(IMAGES, {"source": "image-folder", "path": "photos"})
    return sorted(Path("photos").rglob("*.png"))


@pytest.mark.parametrize("made", [of_idx_files, of_a_folder])
def test_the_sources_of_images_are_checked(
    made: Callable[[], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *others = made()
    assert (check(IMAGES).broken, check(IMAGES).missing) == ([], [])
    flip(first)
    by = f"{IMAGES}/dataset.json was made from it"
    assert check(IMAGES).broken == [f"{first}: changed since {by}"]
    for file in others:
        file.unlink()
    assert check(IMAGES).missing == others


@pytest.mark.usefixtures("chain")
def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        check(SOURCE)
    assert str(caught.value).startswith("data.jsonl: not a result; give a folder with a manifest")


@pytest.mark.usefixtures("chain")
def test_checkpoints_are_left_out() -> None:
    shutil.copytree(BASE, "results/state/tuned/0123/checkpoints/step-00000010")
    assert len(results_below(Path("results"))) == 4


DAMAGES = {
    "truncated": b'{"inputs": {',
    "no text": b"\xff\xfe\x00",
    "empty": b"",
    "a list": b"[1, 2]",
    "lists in lists": b"[" * 100_000,
    "nothing": b"null",
    "other keys": b"{}",
    "another form": b'{"files": [1], "splits": {"train": 1}, "source": {}, "inputs": 3}',
}


@pytest.mark.usefixtures("chain")
@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_each_damaged_file_is_a_line_and_the_others_are_checked(content: bytes) -> None:
    records = [SPLIT.with_name("dataset.json"), MODEL / "lineage.json", SCORES]
    for record in (*records, BASE / "manifest.json"):
        whole = record.read_bytes()
        record.write_bytes(content)
        found = verify(results_below(Path("results")))
        lines = [line for line in found.broken if line.startswith(f"{record}: ")]
        assert lines, record
        assert not any("\n" in line for line in lines)
        # Of the four results and the lineage, none hides another.
        assert {SPLIT.with_name("dataset.json"), BASE / "manifest.json", SCORES} <= {*found.checked}
        record.write_bytes(whole)
    assert verify(results_below(Path("results"))).broken == []
