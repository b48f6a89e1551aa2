"""Parquet files of a repository, against what the library reads; and a Hub of the test's own."""

import datetime
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import Hub, Repository, hub_server

from moray.corpus.hub import load
from moray.corpus.loaded_rows import decode
from moray.errors import UserError

PARQUET_CARD = """---
dataset_info:
  features:
  - {name: kind, dtype: {class_label: {names: {"0": cat, "1": dog}}}}
  - {name: text, dtype: string}
  - {name: score, dtype: float64}
  - {name: time, dtype: "timestamp[s]"}
  - {name: talk, list: [{name: role, dtype: string}, {name: content, dtype: string}]}
  splits:
  - {name: train, num_examples: NUMBER, num_bytes: 1}
  - {name: test, num_examples: 3, num_bytes: 1}
---
"""
SLICES = [
    "train",
    "test",
    "train[:50%]",
    "train[33%:66%]",
    "train[-2500:-10]",
    "train[999:1001]+test[1:]",
]


@pytest.fixture
def parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of Parquet files whose columns have other types than its card says."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "parquet"
    (folder / "data").mkdir(parents=True)

    def write(name: str, start: int, number: int) -> None:
        numbers = range(start, start + number)
        table = {
            "text": [f"text {one} " + "x" * (one % 700) for one in numbers],
            "kind": [one % 2 for one in numbers],
            "score": [one if one % 3 else None for one in numbers],
            "time": [datetime.datetime(2026, 1, 1) + datetime.timedelta(one) for one in numbers],
            "talk": [[{"content": str(one), "role": "user"}] * (one % 4) for one in numbers],
        }
        pq.write_table(pa.table(table), folder / "data" / name, row_group_size=700)

    write("train-00000-of-00002.parquet", 0, 4000)
    write("train-00001-of-00002.parquet", 4000, 1500)
    write("test-00000-of-00001.parquet", 10_000, 3)
    (folder / "README.md").write_text(PARQUET_CARD.replace("NUMBER", "5500"))
    return folder


@pytest.mark.parametrize("split", SLICES)
def test_rows_are_those_of_the_library_without_its_copy(parquet: Path, split: str) -> None:
    loaded = load(str(parquet), None, None, None, split)
    found = [row for table in loaded.tables() for row in decode(table, loaded.features)]
    assert not [*parquet.parent.rglob("*.arrow")]
    # Computed independently, by the library's copy.
    expected = datasets.load_dataset(str(parquet), split=split)
    assert found == [*expected]
    assert loaded.features == expected.features
    assert loaded.num_rows == len(expected)


@pytest.mark.parametrize(
    ("column", "differing"),
    [({"more": ["a"]}, "more: string"), ({"score": ["a"]}, "score: string")],
)
def test_a_file_with_other_columns_costs_one_line(
    parquet: Path, column: dict[str, list[str]], differing: str
) -> None:
    file = parquet / "data/test-00000-of-00001.parquet"
    pq.write_table(pa.table({"text": ["a"], **column}), file)
    (parquet / "README.md").unlink()
    with pytest.raises(UserError) as caught:
        list(load(str(parquet), None, None, None, "train+test").tables())
    assert str(caught.value) == (
        f"{file}: can't read columns as those of the dataset's card or first file ({differing}); "
        "download the files and read them with source: files, which takes each as it is"
    )


def test_a_damaged_file_costs_one_line(parquet: Path) -> None:
    file = parquet / "data/train-00000-of-00002.parquet"
    content = bytearray(file.read_bytes())
    content[1000:5000] = bytes(4000)
    file.write_bytes(content)
    loaded = load(str(parquet), None, None, None, "train")
    with pytest.raises(UserError) as caught:
        list(loaded.tables())
    line = str(caught.value)
    assert line.startswith(f"{file}: can't read the file (")
    assert line.endswith(f"); remove {file}, so that it is fetched again")


def test_a_slice_without_rows_costs_one_line(parquet: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(str(parquet), None, None, None, "train[5:5]")
    assert str(caught.value) == f"{parquet}: train[5:5] has no rows; name another slice"


def test_other_numbers_of_rows_than_the_card_has_are_refused(parquet: Path) -> None:
    (parquet / "README.md").write_text(PARQUET_CARD.replace("NUMBER", "5501"))
    assert load(str(parquet), None, None, None, "test").num_rows == 3
    with pytest.raises(UserError) as caught:
        load(str(parquet), None, None, None, "train[:1]")
    assert str(caught.value).startswith(
        f"{parquet}: got 5,500 rows in the files of train, and the dataset card says 5,501; "
    )


LOAD = """
import sys
from moray.corpus.hub import load
from moray.errors import UserError
for revision in sys.argv[2:]:
    try: print([*load("owner/rows", revision, None, None, sys.argv[1]).tables()][0].to_pylist())
    except UserError as error: print(error)
"""


def loaded(hub: Hub, home: Path, split: str, *revisions: str, offline: bool = False) -> list[str]:
    """The rows of each revision, or the error."""
    # The library reads its settings when it is imported.
    settings = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-c", LOAD, split, *revisions]
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.long
def test_another_commit_is_not_read_if_the_hub_does_not_answer(tmp_path: Path) -> None:
    hub, repository = Hub(), Repository({}, "")
    hub.repositories["datasets", "owner/rows"] = repository
    with hub_server(hub):
        rows = [json.dumps({"text": text}).encode() for text in ("old", "new")]
        old = hub.commit(repository, {"train.jsonl": rows[0]})
        assert loaded(hub, tmp_path, "train", old) == ["[{'text': 'old'}]"]
        new = hub.commit(repository, {"train.jsonl": rows[1]})
        assert loaded(hub, tmp_path, "train", new) == ["[{'text': 'new'}]"]
    refusal, read = loaded(hub, tmp_path, "train", old, new, offline=True)
    assert read == "[{'text': 'new'}]"
    assert refusal.startswith(
        "owner/rows: the Hub can't be reached (or HF_HUB_OFFLINE is set), and this machine has a "
        f"copy of commit {new} (configuration default), not of {old}; "
    )


@pytest.mark.long
def test_only_the_files_that_have_the_rows_are_fetched(tmp_path: Path) -> None:
    hub, repository = Hub(), Repository({}, "")
    hub.repositories["datasets", "owner/rows"] = repository
    files = {}
    for number in range(4):
        sink = io.BytesIO()
        texts = [f"{number} {row} {os.urandom(20_000).hex()}" for row in range(10)]
        pq.write_table(pa.table({"text": texts}), sink)
        files[f"train-{number:05}-of-00004.parquet"] = sink.getvalue()
    with hub_server(hub):
        commit = hub.commit(repository, files)
        (line,) = loaded(hub, tmp_path, "train[25%:28%]+train[35:36]", commit)
    assert line.startswith("[{'text': '1 0 ")
    fetched = [path.name for path in tmp_path.rglob("*.parquet")]
    assert sorted(fetched) == [f"train-0000{number}-of-00004.parquet" for number in (1, 3)]
    ranges = {
        path.rpartition("/")[2]: range
        for command, path, range in hub.requests
        if command == "GET" and path.endswith(".parquet") and range
    }
    assert len(ranges) == 4
    assert sum(map(_size, ranges.values())) < sum(map(len, files.values())) / 2


def _size(range: str) -> int:
    start, end = range.removeprefix("bytes=").split("-")
    return int(end) - int(start) + 1
