"""Sources of images as documents."""

import gzip
import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import colours, image_folder, write_idx
from read_parts import documents_in

from moray.config.schema.datasets import Dataset, HubDataset, LocalFiles
from moray.config.schema.image_datasets import Digits, Idx, ImageFolder
from moray.corpus import hub as access
from moray.corpus.dataset import Document
from moray.corpus.findings import Findings
from moray.corpus.parts import Part
from moray.corpus.sources import open_source
from moray.errors import UserError
from moray.tasks.images.image_files import as_png, decode_image
from moray.tasks.images.sources import ImageSurvey, hub, see
from moray.tasks.images.sources.files import label_names

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3, 4), dtype=np.uint8)
LABELS = np.array([3, 0, 1, 1, 0, 2], np.uint8)


def open_images(
    section: Dataset, files: dict[str, list[str]]
) -> tuple[dict[str, Callable[[], Iterator[Document]]], dict[str, Any], list[str]]:
    """The documents of a source, what describes it, and its labels."""
    # Nothing is downloaded to the folder.
    with open_source(section, files, Path(tempfile.gettempdir())) as source:
        assert source.survey
        splits: dict[str, Callable[[], Iterator[Document]]] = {
            split: partial(_documents, parts) for split, parts in source.splits.items()
        }
        return splits, source.origin, source.survey.facts()["label_names"]


def _documents(parts: Callable[[], Iterator[Part]]) -> Iterator[Document]:
    return documents_in(parts(), Findings())


def all_of(make: Callable[[], Iterator[Document]]) -> list[Document]:
    """The documents of a split, which is read twice as by those that divide it."""
    first, second = list(make()), list(make())
    assert first == second
    return first


def test_digits_are_those_of_the_library() -> None:
    given, origin, names = open_images(Digits(source="digits"), {})
    documents = all_of(given["train"])
    assert len(documents) == 1797
    assert names == [str(digit) for digit in range(10)]
    assert set(Counter(document["label"] for document in documents)) == set(range(10))
    assert origin["revision"].startswith("scikit-learn ")
    pixels = np.asarray(decode_image(documents[0]["image"], "x"))
    assert pixels.shape == (8, 8)
    assert (pixels.min(), pixels.max()) == (0, round(15 * 255 / 16))


@pytest.fixture
def idx(tmp_path: Path) -> dict[str, Any]:
    write_idx(tmp_path / "images.gz", PIXELS)
    write_idx(tmp_path / "labels", LABELS)
    files = {"images": str(tmp_path / "images.gz"), "labels": str(tmp_path / "labels")}
    return {"source": "idx", "train": files}


def test_idx_files_compressed_or_not(idx: dict[str, Any]) -> None:
    section = Idx(**idx)
    given, origin, names = open_images(section, {})
    assert set(given) == section.given_splits == {"train"}
    documents = all_of(given["train"])
    assert [document["label"] for document in documents] == LABELS.tolist()
    assert names == ["0", "1", "2", "3"]
    assert len(origin["files"]) == 2
    for document, pixels in zip(documents, PIXELS, strict=True):
        assert np.array_equal(np.asarray(decode_image(document["image"], "x")), pixels)


def test_idx_files_of_a_test_split(idx: dict[str, Any], tmp_path: Path) -> None:
    write_idx(tmp_path / "test-labels", LABELS + 1)
    test = {**idx["train"], "labels": str(tmp_path / "test-labels")}
    section = Idx(**idx, test=test)
    given, _, names = open_images(section, {})
    assert set(given) == section.given_splits == {"train", "test"}
    assert names == ["0", "1", "2", "3", "4"]
    assert [document["label"] for document in given["test"]()] == (LABELS + 1).tolist()


def cut(content: bytes) -> bytes:
    return content[:-1]


def compressed_and_cut(content: bytes) -> bytes:
    return gzip.compress(content)[:-9]


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (cut, "got 87 bytes, expected 88 for the shape in its header, 6 x 3 x 4"),
        (compressed_and_cut, "can't decompress it"),
        (lambda content: b"P5 6 6", "got no IDX file of bytes in 3 dimensions"),
        (lambda content: b"", "got no IDX file of bytes in 3 dimensions"),
    ],
)
def test_a_broken_idx_file_costs_one_line(
    broken: Callable[[bytes], bytes], problem: str, idx: dict[str, Any], tmp_path: Path
) -> None:
    content = write_idx(tmp_path / "whole", PIXELS).read_bytes()
    Path(idx["train"]["images"]).write_bytes(broken(content))
    with pytest.raises(UserError) as caught:
        list(open_images(Idx(**idx), {})[0]["train"]())
    assert str(caught.value).startswith(f"{idx['train']['images']}: {problem}")


def test_labels_of_other_images_cost_one_line(idx: dict[str, Any]) -> None:
    write_idx(Path(idx["train"]["labels"]), LABELS[:-1])
    with pytest.raises(UserError, match="got 5 labels for the 6 images of "):
        list(open_images(Idx(**idx), {})[0]["train"]())


def test_the_folders_of_classes_are_the_labels(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", {"dog": 3, "cat": 2, "cow": 4})
    (folder / ".hidden").mkdir()
    (folder / "cat/.DS_Store").write_text("x")
    (folder / "readme.txt").write_text("x")
    section = ImageFolder(source="image-folder", path=str(folder))
    given, _, names = open_images(section, {})
    assert set(given) == section.given_splits == {"train"}
    assert names == ["cat", "cow", "dog"]
    documents = all_of(given["train"])
    assert Counter(document["label"] for document in documents) == {0: 2, 1: 4, 2: 3}
    for document in documents:
        assert Path(document["place"]).parent.name == names[document["label"]]
        assert Path(document["place"]).read_bytes() == document["image"]


@pytest.mark.parametrize("splits", [(), ("train", "test"), ("train_set", "test_set")])
def test_what_macos_adds_to_archives_is_no_class(
    splits: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "photos"
    for name in splits or ("",):
        image_folder(folder / name, {"cat": 2, "dog": 2})
        (folder / name / "__MACOSX/cat").mkdir(parents=True)
        (folder / name / "__MACOSX/cat/._000.png").write_text("x")
    (folder / "__MACOSX").mkdir(exist_ok=True)
    given, _, names = open_images(ImageFolder(source="image-folder", path=str(folder)), {})
    assert names == ["cat", "dog"]
    assert set(given) == ({"train", "test"} if splits else {"train"})
    assert all(len(all_of(make)) == 4 for make in given.values())
    said = capsys.readouterr().err
    assert f"{folder}: left out __MACOSX, which macOS adds to archives\n" in said
    assert "no split has this name" not in said


def test_a_folder_of_classes_as_people_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = image_folder(tmp_path / "photos", {"cat": 2, "dog": 2})
    (folder / "cat/000.png").rename(folder / "cat/000.PNG")
    elsewhere = image_folder(tmp_path / "more", {"new": 3})
    (folder / "cat/linked").symlink_to(elsewhere / "new")
    (folder / "cow").symlink_to(elsewhere / "new")
    (folder / "dog/.ipynb_checkpoints").mkdir()
    colours(4, 4).save(folder / "dog/.ipynb_checkpoints/001-checkpoint.png")
    colours(4, 4).convert("RGB").save(folder / "dog/without ending", "JPEG")
    for name in ("Thumbs.db", "names.TXT"):
        (folder / "dog" / name).write_text("x")
    section = ImageFolder(source="image-folder", path=str(folder))
    before = section.state("x")
    given, origin, names = open_images(section, {})
    assert names == ["cat", "cow", "dog"]
    documents = all_of(given["train"])
    assert Counter(document["label"] for document in documents) == {0: 5, 1: 3, 2: 3}
    assert {*origin["files"]} == {document["place"] for document in documents}
    assert (
        f"{folder}: left out 2 files whose ending is not an image's (.TXT, .db), the first is "
        f"{folder}/dog/Thumbs.db"
    ) in capsys.readouterr().err
    # What a link leads to counts, too.
    colours(8, 8, 99).save(elsewhere / "new/003.png")
    assert section.state("x") != before


@pytest.mark.parametrize(
    ("place", "target", "problem"),
    [
        ("cat/far.png", "nowhere.png", "is a link to nowhere.png, which doesn't exist; fetch"),
        ("cat/round", ".", "is a link to a folder that it is in; remove the link"),
    ],
)
def test_a_link_that_leads_nowhere_or_round_costs_one_line(
    place: str, target: str, problem: str, tmp_path: Path
) -> None:
    folder = image_folder(tmp_path / "photos", {"cat": 2, "dog": 2})
    (folder / place).symlink_to(target)
    section = ImageFolder(source="image-folder", path=str(folder))
    for read in (lambda: section.state("x"), lambda: open_images(section, {})):
        with pytest.raises(UserError) as caught:
            read()
        assert f"{place}: {problem}" in str(caught.value)


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "Validation"), ("TRAIN", "valid")])
def test_folders_of_splits_have_the_names_that_people_give_them(
    names: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, classes in zip(names, ({"a": 2, "b": 2}, {"b": 1}), strict=True):
        image_folder(tmp_path / "photos" / name, classes)
    (tmp_path / "photos/holdout").mkdir()
    section = ImageFolder(source="image-folder", path=str(tmp_path / "photos"))
    given, _, _ = open_images(section, {})
    assert set(given) == section.given_splits == {"train", "validation"}
    assert len(list(given["validation"]())) == 1
    line = f"photos: not read, because no split has this name: {tmp_path}/photos/holdout\n"
    assert line in capsys.readouterr().err


def test_images_of_a_folder_come_mixed(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", {"a": 40, "b": 40})
    given, _, _ = open_images(ImageFolder(source="image-folder", path=str(folder)), {})
    labels = [document["label"] for document in given["train"]()]
    assert 10 < sum(labels[:40]) < 30


def test_a_folder_can_have_splits(tmp_path: Path) -> None:
    image_folder(tmp_path / "photos/train", {"a": 2, "b": 2})
    image_folder(tmp_path / "photos/test", {"b": 1})
    section = ImageFolder(source="image-folder", path=str(tmp_path / "photos"))
    given, _, names = open_images(section, {})
    assert set(given) == section.given_splits == {"train", "test"}
    assert names == ["a", "b"]
    assert [document["label"] for document in given["test"]()] == [1]


@pytest.mark.parametrize(
    ("classes", "problem"),
    [
        ({}, "got no folder of a class, expected at least two"),
        ({"cat": 2}, "got only one class, cat, expected at least two"),
    ],
)
def test_fewer_than_two_classes_cost_one_line(
    classes: dict[str, int], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    folder = image_folder(tmp_path / "photos", classes)
    with pytest.raises(UserError, match=f"^{folder}: {problem}; "):
        open_images(ImageFolder(source="image-folder", path=str(folder)), {})


def test_a_class_without_images_costs_one_line(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", {"cat": 2, "dog": 0})
    given, _, _ = open_images(ImageFolder(source="image-folder", path=str(folder)), {})
    with pytest.raises(UserError, match=f"^{folder}/dog: has no images; "):
        list(given["train"]())


def test_a_class_that_train_lacks_costs_one_line(tmp_path: Path) -> None:
    image_folder(tmp_path / "photos/train", {"a": 2, "b": 2})
    image_folder(tmp_path / "photos/test", {"c": 1})
    with pytest.raises(UserError, match=r"photos/test/c: got a class that .* doesn't have; "):
        open_images(ImageFolder(source="image-folder", path=str(tmp_path / "photos")), {})


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", {"cat": 2, "dog": 2})
    os.rename(folder / "cat/000.png", os.fsencode(folder / "cat") + b"/\xe9.png")
    with pytest.raises(UserError, match=r"photos/cat: the name of .*xe9\.png' isn't UTF-8; rename"):
        open_images(ImageFolder(source="image-folder", path=str(folder)), {})


def test_several_classes_an_image_are_refused(tmp_path: Path) -> None:
    file = tables(tmp_path, [[0, 1], [1]])
    with pytest.raises(UserError, match=r"got list<.*> in column label, expected one class; "):
        label_names([file], "label")


def test_splits_inside_the_classes_are_refused(tmp_path: Path) -> None:
    """Images that are held out would be trained."""
    for split in ("Training", "test"):
        image_folder(tmp_path / "new", {"cat": 2, "dog": 2})
        for name in ("cat", "dog"):
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "new" / name).rename(tmp_path / "photos" / name / split)
    section = ImageFolder(source="image-folder", path=str(tmp_path / "photos"))
    given, _, _ = open_images(section, {})
    problem = r"photos/cat: has folders named after splits \(Training and test\), .*Training/cat$"
    with pytest.raises(UserError, match=problem):
        list(given["train"]())


def test_a_split_without_classes_is_refused(tmp_path: Path) -> None:
    image_folder(tmp_path / "photos/train", {"a": 2, "b": 2})
    (tmp_path / "photos/test").mkdir()
    (tmp_path / "photos/train/a").joinpath("000.png").rename(tmp_path / "photos/test/0.png")
    with pytest.raises(UserError, match=r"photos/test: got no folders of classes, expected those"):
        open_images(ImageFolder(source="image-folder", path=str(tmp_path / "photos")), {})


def test_a_class_that_is_spelled_otherwise_in_train_is_shown_as_both_are(tmp_path: Path) -> None:
    """As macOS writes é: two characters that look like one."""
    image_folder(tmp_path / "photos/train", {"caf\u00e9": 2, "tea": 2})
    image_folder(tmp_path / "photos/test", {"cafe\u0301": 1})
    problem = (
        r"got a class that .* doesn't have \('cafe\\u0301' here, 'caf\\xe9' there\); give both"
    )
    with pytest.raises(UserError, match=problem):
        open_images(ImageFolder(source="image-folder", path=str(tmp_path / "photos")), {})


def tables(folder: Path, labels: list[Any], described: list[str] | None = None) -> Path:
    """A Parquet file with an image for each label, as the library `datasets` writes it."""
    rows = [
        {"image": {"bytes": as_png(colours(4, 4, number)), "path": None}, "label": label}
        for number, label in enumerate(labels)
    ]
    table = pa.Table.from_pylist(rows)
    if described:
        feature = {"label": {"names": described, "_type": "ClassLabel"}}
        about = json.dumps({"info": {"features": feature}})
        table = table.replace_schema_metadata({"huggingface": about})
    pq.write_table(table, folder / "images.parquet")
    return folder / "images.parquet"


@pytest.mark.parametrize(
    ("labels", "described", "names", "numbers"),
    [
        ([1, 0, 2], None, ["0", "1", "2"], [1, 0, 2]),
        ([1, 0, 1], ["cat", "dog", "cow"], ["cat", "dog", "cow"], [1, 0, 1]),
        (["dog", "cat", "dog"], None, ["cat", "dog"], [1, 0, 1]),
    ],
)
def test_tables_with_a_column_of_images(
    labels: list[Any],
    described: list[str] | None,
    names: list[str],
    numbers: list[int],
    tmp_path: Path,
) -> None:
    file = str(tables(tmp_path, labels, described))
    section = LocalFiles(source="files", format="images", path=file)
    given, origin, found = open_images(section, {"train": [file]})
    documents = all_of(given["train"])
    assert found == names
    assert [document["label"] for document in documents] == numbers
    assert documents[1]["image"] == as_png(colours(4, 4, 1))
    assert documents[1]["place"] == f"{file}, row 2"
    assert list(origin["files"]) == [file]


def named_tables(folder: Path, **splits: tuple[list[Any], list[str] | None]) -> dict[str, str]:
    """A file for each split, of labels and the names of their numbers."""
    files = {}
    for split, (labels, described) in splits.items():
        files[split] = str(folder / f"{split}.parquet")
        tables(folder, labels, described).rename(files[split])
    return files


def kinds_of(files: dict[str, str]) -> dict[str, list[str]]:
    """The names of the labels in each split."""
    section = LocalFiles(source="files", format="images", path=files)
    given, _, names = open_images(section, {split: [file] for split, file in files.items()})
    return {
        split: [names[document["label"]] for document in documents()]
        for split, documents in given.items()
    }


@pytest.mark.parametrize("test", [([0, 1, 1], ["dog", "cat"]), (["dog", "cat", "cat"], None)])
def test_labels_of_several_files_go_by_their_names(
    test: tuple[list[Any], list[str] | None], tmp_path: Path
) -> None:
    files = named_tables(tmp_path, train=([0, 1, 0], ["cat", "dog"]), test=test)
    assert kinds_of(files) == {"train": ["cat", "dog", "cat"], "test": ["dog", "cat", "cat"]}


def test_numbers_of_labels_are_whole_or_fractional_and_in_text_too(tmp_path: Path) -> None:
    files = named_tables(tmp_path, train=([2, 0, 1], None), test=([2.0, 1.0], None))
    assert kinds_of(files) == {"train": ["2", "0", "1"], "test": ["2", "1"]}
    mixed = named_tables(tmp_path, train=([7, 1, 3], None), test=(["3", "no", "7"], None))
    assert kinds_of(mixed) == {"train": ["7", "1", "3"], "test": ["3", "no", "7"]}


@pytest.mark.parametrize(
    ("splits", "problem"),
    [
        (
            {"train": ([0, 1], ["a", "b"]), "test": ([0, -1], ["b", "a"])},
            r"test\.parquet, row 2: got nothing in column label; ",
        ),
        (
            {"train": ([0.0, float("nan")], None)},
            r"train\.parquet, row 2: got nothing in column label; ",
        ),
        (
            {
                "train": ([0, 1], ["a", "b"]),
                "validation": ([0, 1], ["b", "a"]),
                "test": ([0, 1], None),
            },
            r"test\.parquet: got numbers without names in column label, which other files name ",
        ),
    ],
)
def test_labels_that_cannot_be_known_cost_one_line(
    splits: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=problem):
        kinds_of(named_tables(tmp_path, **splits))


def test_a_repository_with_a_column_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    tables(tmp_path / "data", [1, 0, 2])
    # The folder stands in the hub's place.
    monkeypatch.setattr(
        hub, "load", lambda _, revision, *rest: access.load(str(tmp_path), None, *rest)
    )
    keys: dict[str, Any] = {"source": "hub", "repo_id": "a/b", "revision": "0" * 40}
    given, origin, names = open_images(HubDataset(**keys, format="images"), {})
    assert origin["repo_id"] == "a/b"
    documents = all_of(given["train"])
    assert names == ["0", "1", "2"]
    assert [document["label"] for document in documents] == [1, 0, 2]
    assert documents[1]["image"] == as_png(colours(4, 4, 1))


def test_other_names_of_columns_are_mapped_and_missing_ones_cost_one_line(tmp_path: Path) -> None:
    file = tables(tmp_path, [0, 1])
    table = pq.read_table(file).rename_columns(["picture", "kind"])
    pq.write_table(table, file)
    files = {"train": [str(file)]}
    keys: dict[str, Any] = {"source": "files", "format": "images", "path": str(file)}
    columns = {"image": "picture", "label": "kind"}
    given, _, names = open_images(LocalFiles(**keys, columns=columns), files)
    assert len(list(given["train"]())) == len(names) == 2
    with pytest.raises(UserError, match=f"^{file}: got columns picture, kind, expected label; "):
        open_images(LocalFiles(**keys), files)


def test_what_is_no_parquet_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"x" * 100)
    keys: dict[str, Any] = {"source": "files", "format": "images", "path": "x"}
    with pytest.raises(UserError, match=r"x\.parquet: can't read it as Parquet"):
        open_images(LocalFiles(**keys), {"train": [str(tmp_path / "x.parquet")]})


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_images_behind_the_first_one_are_told(kind: str) -> None:
    first, file = colours(4, 4), io.BytesIO()
    first.save(file, kind, save_all=True, append_images=[colours(4, 4, 1)], lossless=True)
    seen = ImageSurvey(["a"])
    alone = Document(image=as_png(first), label=0, place="x")
    seen.note("train", see(alone))
    assert [*seen.lines("x")] == []
    seen.note("train", see(Document(**alone | {"image": file.getvalue()})))
    assert [*seen.lines("x")] == [
        "dataset x: files with several frames or pages, of which the first is read: 1"
    ]


def rows(*sizes: tuple[int, int], label: int = 0) -> list[tuple[str, Document]]:
    return [
        ("train", Document(image=as_png(colours(*size)), label=label, place="here"))
        for size in sizes
    ]


def test_the_common_size_is_known_in_the_end() -> None:
    for sizes, expected in (([(3, 4), (3, 4)], [3, 4]), ([(3, 4), (4, 3)], None), ([], None)):
        facts = ImageSurvey(["a", "b"])
        for split, row in rows(*sizes):
            facts.note(split, see(row))
        assert facts.facts() == {"label_names": ["a", "b"], "image_size": expected}


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_without_a_name_costs_one_line(label: int) -> None:
    with pytest.raises(UserError, match=f"^here: got label {label}, expected 0 to 1; "):
        ImageSurvey(["a", "b"]).note("train", see(rows((3, 4), label=label)[0][1]))
