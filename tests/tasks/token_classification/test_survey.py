"""What the tags of a dataset are, and which rows are none."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from classified import write_rows
from datasets import ClassLabel, Dataset, Features, List, Value
from tagged import ROWS, sentences

from moray.errors import UserError
from moray.stages.download import download
from moray.tasks.token_classification.survey import spell_entities


def described(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    """The description of a dataset of rows."""
    write_rows(folder / "rows.jsonl", rows)
    return downloaded(folder, folder / "rows.jsonl", **keys)


def downloaded(folder: Path, file: Path, **keys: Any) -> dict[str, Any]:
    download(folder / "dataset", {**ROWS, "path": str(file), **keys}, {"train": [str(file)]})
    found: dict[str, Any] = json.loads((folder / "dataset/dataset.json").read_text())
    return found


def row(*tags: str) -> dict[str, Any]:
    return {"tokens": [f"w{number}" for number in range(len(tags))], "tags": list(tags)}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["B-PER", "I-PER", "O"], True),
        (["S-A", "E-A", "L-A", "U-A"], True),
        (["B-A", "M-A", "E-A"], True),
        (["O"], False),
        (["NN", "VB", "O"], False),
        (["PER", "O"], False),
    ],
)
def test_tags_spell_entities_or_not(names: list[str], expected: bool) -> None:
    assert spell_entities(names) == expected


def test_names_of_numbers_on_the_hub_are_the_tags(tmp_path: Path) -> None:
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    features = Features(
        {"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=names))}
    )
    rows = {
        "tokens": [one["tokens"] for one in sentences(60)],
        "ner_tags": [[*map(names.index, one["tags"])] for one in sentences(60)],
    }
    file = tmp_path / "rows.parquet"
    Dataset.from_dict(rows, features).to_parquet(file)
    found = downloaded(tmp_path, file)
    assert found["label_names"] == sorted(names)
    assert found["problem_type"] == "token_classification"


def test_the_download_says_what_the_tags_are(tmp_path: Path, capsys: Any) -> None:
    described(tmp_path / "a", sentences(60))
    assert "words of 5 tags (of entities)" in capsys.readouterr().err
    mixed = [
        {**one, "tags": [tag.replace("B-LOC", "LOC") for tag in one["tags"]]}
        for one in sentences(60)
    ]
    described(tmp_path / "b", mixed)
    said = capsys.readouterr().err
    assert "words of 5 tags (of words, not of entities)" in said
    assert "LOC isn't the tag of an entity, such as B-PER, and others are" in said
    numbers = [{**one, "tags": [len(tag) for tag in one["tags"]]} for one in sentences(60)]
    described(tmp_path / "c", numbers)
    assert "its tags are numbers without names" in capsys.readouterr().err
    fractions = [{**one, "tags": [len(tag) + 0.5 for tag in one["tags"]]} for one in sentences(60)]
    described(tmp_path / "d", fractions)
    assert "its tags are numbers without names" in capsys.readouterr().err


@pytest.mark.parametrize("number", [-1, -100])
def test_a_number_of_no_class_is_refused_alike_with_names_and_without(
    number: int, tmp_path: Path
) -> None:
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    rows = [{**one, "ner_tags": [*map(names.index, one["tags"])]} for one in sentences(60)]
    for one in rows:
        del one["tags"]
    rows[6]["ner_tags"][1] = number
    with pytest.raises(UserError, match=rf"line 7: got {number} as tag 2 .*; give each word a tag"):
        described(tmp_path, rows)
    feature = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "List"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"ner_tags": feature}}})}
    table = pa.Table.from_pylist(rows).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"row 7: got nothing as tag 2 .*; give each word a tag"):
        downloaded(tmp_path, tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "got 2 words and 1 tags, expected a tag for each"),
        ({"tokens": ["a", " "], "tags": ["O", "O"]}, "got nothing as word 2 of 2"),
        ({"tokens": ["a"], "tags": [None]}, "got nothing as tag 1 of 1 .*; give each word a tag"),
        (
            {"tokens": ["a", "b"], "tags": [1, -100]},
            "got -100 as tag 2 of 2, which stands for no tag .*; give each word a tag",
        ),
        ({"tokens": ["a", "b"], "tags": [-1.0, 2.0]}, "got -1 as tag 1 of 2, which stands for no"),
        ({"tokens": ["a", "b"], "tags": ["O", ["O"]]}, "got list as a tag, expected text or a num"),
        ({"tokens": "a b", "tags": ["O", "O"]}, "got str for tokens, expected a list"),
        ({"tokens": ["a"]}, "got columns tokens, expected tags"),
    ],
)
def test_a_row_without_a_tag_for_each_word_is_refused(
    bad: dict[str, Any], problem: str, tmp_path: Path, capsys: Any
) -> None:
    with pytest.raises(UserError, match=rf"rows\.jsonl, line 61: {problem}"):
        described(tmp_path, [*sentences(60), bad])
    described(tmp_path, [*sentences(240), bad], bad_rows="drop")
    assert f"1 bad row dropped, the first in {tmp_path / 'rows.jsonl'}" in capsys.readouterr().err


def test_a_text_without_words_is_dropped(tmp_path: Path) -> None:
    found = described(tmp_path, [*sentences(60), row()])
    assert found["blanks"] == {"train": 1}


def test_a_tag_that_is_only_held_out_is_refused_by_name(tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", [row("B-NEW", "O")])
    write_rows(tmp_path / "train.jsonl", sentences(60))
    files = {split: [str(tmp_path / f"{split}.jsonl")] for split in ("train", "test")}
    section = {**ROWS, "path": {split: paths[0] for split, paths in files.items()}}
    with pytest.raises(UserError, match=r"1 of 6 tags are in no row to train on.*: B-NEW"):
        download(tmp_path / "dataset", section, files)
    with pytest.raises(UserError, match="got one class, O"):
        described(tmp_path, [row(*["O"] * count) for count in range(1, 40)])
