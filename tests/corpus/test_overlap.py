"""Documents that one dataset holds out and another trains on, against counts of plain rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moray.corpus.dataset import Document
from moray.corpus.documents import write_dataset
from moray.corpus.overlap import find_overlaps, overlap_messages
from moray.stages.download import download

Make = Callable[[int, str], Any]


def downloaded(folder: Path, rows: dict[str, list[Any]], format: str, **keys: Any) -> Path:
    """A dataset of a file for each split that is given; the rest is split by hash."""
    files = {split: [str(folder.with_suffix(f".{split}.jsonl"))] for split in rows}
    for split, (file,) in files.items():
        Path(file).write_text("".join(f"{json.dumps(row)}\n" for row in rows[split]))
    section = {"source": "files", "path": "unread", "format": format, **keys}
    download(folder, section, files)
    return folder


def splits(*folders: Path) -> list[Path]:
    return [
        folder / f"{name}.parquet" for folder in folders for name in ("test", "validation", "train")
    ]


def counts(*folders: Path) -> dict[tuple[str, str, str], tuple[int, int, int]]:
    """What is found, by the dataset, its split, and the dataset that trains on it."""
    return {
        (found["dataset"], found["split"], found["by"]): (
            found["trained"],
            found["related"],
            found["documents"],
        )
        for found in find_overlaps(splits(*folders), {folder.name: ["run"] for folder in folders})
    }


def text(number: int, answer: str) -> Any:
    return {"text": f"{number} {answer}"}


def asked(number: int, answer: str) -> Any:
    return {"prompt": f"question {number}", "completion": answer}


def spoken(number: int, answer: str) -> Any:
    said = {"role": "user", "content": f"question {number}"}
    return {"messages": [said, {"role": "assistant", "content": answer}]}


def preferred(number: int, answer: str) -> Any:
    return {"prompt": f"question {number}", "chosen": answer, "rejected": "bad"}


def judged(number: int, answer: str) -> Any:
    return asked(number, answer) | {"label": number % 2}


FORMATS: list[tuple[str, Make]] = [
    ("text", text),
    ("prompt-completion", asked),
    ("messages", spoken),
    ("preference", preferred),
    ("unpaired-preference", judged),
]


@pytest.mark.parametrize(("format", "make"), FORMATS, ids=[name for name, _ in FORMATS])
def test_planted_documents_are_counted_in_each_format(
    format: str, make: Make, tmp_path: Path
) -> None:
    own = downloaded(
        tmp_path / "own",
        {
            "train": [make(number, "own") for number in range(100, 120)],
            # Six are trained on in the other, three with another answer, one isn't there.
            "test": [
                *(make(number, "right") for number in range(6)),
                *(make(number, "another") for number in range(6, 9)),
                make(99, "right"),
            ],
        },
        format,
        validation_share=0,
    )
    other = downloaded(
        tmp_path / "other",
        {
            "train": [make(number, "right") for number in range(20)],
            "test": [make(number, "right") for number in range(200, 205)],
        },
        format,
        validation_share=0,
    )
    related = 0 if format == "text" else 3
    assert counts(own, other) == {("own", "test", "other"): (6, related, 10)}


def test_other_shares_put_the_same_text_into_other_splits(tmp_path: Path) -> None:
    rows = {"train": [text(number, "") for number in range(300)]}
    few = downloaded(tmp_path / "few", rows, "text", validation_share=0.05, test_share=0.05)
    many = downloaded(tmp_path / "many", rows, "text", validation_share=0.1, test_share=0.3)

    def texts(folder: Path, split: str) -> set[str]:
        return set(pd.read_parquet(folder / f"{split}.parquet")["text"])

    expected = {}
    for own, other in ((few, many), (many, few)):
        for split in ("test", "validation"):
            held_out = texts(own, split)
            if both := len(held_out & texts(other, "train")):
                expected[own.name, split, other.name] = (both, 0, len(held_out))
    assert {"test", "validation"} == {split for _, split, _ in expected}
    assert counts(few, many) == expected


def test_nothing_is_found_in_datasets_that_hold_out_the_same(tmp_path: Path) -> None:
    rows = {"train": [asked(number, "right") for number in range(100)]}
    one = downloaded(tmp_path / "one", rows, "prompt-completion")
    two = downloaded(tmp_path / "two", rows, "prompt-completion")
    assert pd.read_parquet(one / "test.parquet").shape[0] > 0
    assert counts(one, two) == {}


def test_a_dataset_is_not_compared_with_itself(tmp_path: Path) -> None:
    folder = tmp_path / "only"
    same = Document(text="same")
    rows = [(split, same) for split in ("train", "validation", "test")]
    write_dataset(folder, iter(rows), "text", {})
    assert counts(folder) == {}


def test_rows_of_one_group_are_related_and_images_are_known_by_their_bytes(tmp_path: Path) -> None:
    def images(name: str, rows: list[tuple[str, bytes, str | None]]) -> Path:
        documents = [
            (split, Document(image=content, label=0, **({"group": group} if group else {})))
            for split, content, group in rows
        ]
        write_dataset(tmp_path / name, iter(documents), "images", {})
        return tmp_path / name

    own = images("own", [("test", bytes([255, n]), None) for n in range(5)])
    other = images("other", [("train", bytes([255, n]), None) for n in range(3, 9)])
    assert counts(own, other) == {("own", "test", "other"): (2, 0, 5)}

    def patients(name: str, rows: list[tuple[str, str, str]]) -> Path:
        documents = [(split, Document(text=text, group=group)) for split, text, group in rows]
        write_dataset(tmp_path / name, iter(documents), "text", {})
        return tmp_path / name

    first = patients("first", [("test", "a", "1"), ("test", "b", "1"), ("test", "c", "2")])
    # The same text counts in any group.
    second = patients("second", [("train", "x", "1"), ("train", "c", "3")])
    assert counts(first, second) == {("first", "test", "second"): (1, 2, 3)}


def test_what_is_told() -> None:
    facts = {"dataset": "asked", "split": "test", "by": "table"}
    found = [
        {**facts, "documents": 10, "trained": 6, "related": 0, "runs": ["base2"]},
        {**facts, "documents": 1000, "trained": 1000, "related": 2, "runs": ["base", "tuned"]},
    ]
    assert overlap_messages({"documents": 7, "overlaps": found}) == [
        "6 of 10 test documents of asked were trained on, in table (run base2)",
        "1,000 of 1,000 test documents of asked were trained on, in table (runs base, tuned)",
        "2 of 1,000 test documents of asked share their prompt or group with some that were "
        "trained on, in table (runs base, tuned)",
    ]
    assert overlap_messages({"images": 7, "overlaps": found})[0].startswith(
        "6 of 10 test images of asked"
    )
    assert overlap_messages({"documents": 7}) == overlap_messages({}) == []
