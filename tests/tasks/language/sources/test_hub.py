"""A folder laid out like a dataset's repository on the hub, read as the hub's are."""

import datetime
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import Hub, Repository, hub_server
from read_parts import documents_in, documents_of_hub, loaded_rows

from moray.config.schema.datasets import HubDataset
from moray.corpus.dataset import Document, read_documents
from moray.corpus.findings import Findings
from moray.corpus.hub import load
from moray.corpus.remarks import Remarks
from moray.errors import UserError
from moray.stages.download import download
from moray.tasks.language.formats import Shape
from moray.tasks.language.sources import hub

CARD = """---
configs:
- config_name: one
  default: true
  data_files:
  - {split: train, path: one/train-*.jsonl}
  - {split: test, path: one/test.jsonl}
- config_name: two
  data_files:
  - {split: train, path: two.jsonl}
---
# A dataset
"""
ADVICE = "check name, revision, split, the network and, for gated datasets, `hf auth login`"

# What each file of the repository holds.
TEXTS = {
    "one/train-0.jsonl": [f"a {number}" for number in range(6)],
    "one/train-1.jsonl": [f"b {number}" for number in range(4)],
    "one/test.jsonl": ["t 0 é", "t 1"],
    "two.jsonl": ["only"],
    "more/train.jsonl": ["m 0", "m 1"],
    "more/deep/train.jsonl": ["m 2"],
}
TRAIN = TEXTS["one/train-0.jsonl"] + TEXTS["one/train-1.jsonl"]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory has it at `owner/name`."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "owner/name"
    for name, texts in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "README.md").write_text(CARD)
    return folder


@pytest.mark.parametrize(
    ("name", "data_dir", "split", "expected"),
    [
        (None, None, "train", TRAIN),
        ("one", None, "test", TEXTS["one/test.jsonl"]),
        ("one", None, "train[:50%]", TRAIN[:5]),
        ("one", None, "train[-3:]+test", TRAIN[-3:] + TEXTS["one/test.jsonl"]),
        ("one", None, "train+test", TRAIN + TEXTS["one/test.jsonl"]),
        ("two", None, "train", TEXTS["two.jsonl"]),
        (None, "more/deep", "train", TEXTS["more/deep/train.jsonl"]),
    ],
)
def test_a_split_expression_gives_its_rows(
    repository: Path, name: str | None, data_dir: str | None, split: str, expected: list[str]
) -> None:
    rows = load(str(repository), None, name, data_dir, split)
    found = list(documents_of_hub("x", rows, Shape("text")))
    assert found == [Document(text=text) for text in expected]


@pytest.mark.parametrize(
    ("name", "split", "problem"),
    [
        ("one", "dev", "Unknown split \"dev\". Should be one of ['train', 'test']."),
        ("three", "train", "BuilderConfig 'three' not found. Available: ['one', 'two']"),
    ],
)
def test_what_a_repository_does_not_have_costs_one_line(
    repository: Path, name: str, split: str, problem: str
) -> None:
    with pytest.raises(UserError) as caught:
        load(str(repository), None, name, None, split)
    assert str(caught.value) == (
        f"{repository}: can't load split {split} at revision None ({problem}); {ADVICE}"
    )


def test_a_file_that_cannot_be_read_is_reported_with_the_reason(repository: Path) -> None:
    (repository / "two.jsonl").write_text('{"text": "a"}\nno JSON\n')
    with pytest.raises(UserError) as caught:
        load(str(repository), None, "two", None, "train")
    line = str(caught.value)
    assert line.startswith(f"{repository}: can't load split train at revision None (")
    assert "JSON" in line
    assert "\n" not in line


@pytest.mark.usefixtures("repository")
def test_a_folder_is_not_taken_for_the_hub_s_commit() -> None:
    with pytest.raises(UserError) as caught:
        load("owner/name", "0" * 40, "one", None, "train")
    assert str(caught.value) == (
        "owner/name: the working directory has a folder of this name, which would be read instead; "
        "rename the folder, or read it with source: files"
    )


@pytest.mark.parametrize("data", [True, False])
def test_a_script_of_a_repository_is_refused_and_not_run(repository: Path, data: bool) -> None:
    folder = repository.parent / "scripted"
    folder.mkdir()
    if data:
        (folder / "train.jsonl").write_text('{"text": "a"}\n')
    ran = repository / "ran"
    (folder / "scripted.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    with pytest.raises(UserError) as caught:
        load(str(folder), None, None, None, "train")
    assert str(caught.value) == (
        f"{folder}: can't load split train at revision None (Dataset scripts are no longer "
        f"supported, but found scripted.py); {ADVICE}"
    )
    assert not ran.exists()


def test_a_row_that_is_no_document_is_reported_with_its_number() -> None:
    rows = datasets.Dataset.from_dict({"text": ["a", None, "b"]})
    with pytest.raises(UserError) as caught:
        list(documents_of_hub("owner/name", rows, Shape("text")))
    assert str(caught.value) == (
        "owner/name, row 2: got nothing in column text, expected text; "
        "write it as text, remove the row, or set bad_rows: drop"
    )


def test_conversations_are_read_from_nested_columns() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}, "type": "function"}
    talks: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}],
        [{"role": "assistant", "content": None, "tool_calls": [call]}],
    ]
    rows = datasets.Dataset.from_list([{"messages": talk} for talk in talks])
    first, second = documents_of_hub("x", rows, Shape("messages"))
    assert json.loads(first["messages"]) == talks[0]
    (message,) = json.loads(second["messages"])
    assert message["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    ]


def test_columns_that_nobody_reads_are_known_of_all_splits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Rows in the hub's place.
    rows = {
        "train": {"text": ["a"], "id": [1], "image": [""]},
        "test": {"text": ["b"], "id": [2], "image": ["b.png"]},
    }
    monkeypatch.setattr(
        hub, "load", lambda *place: loaded_rows(datasets.Dataset.from_dict(rows[str(place[-1])]))
    )
    section = HubDataset.model_validate(
        {
            "source": "hub",
            "repo_id": "owner/name",
            "revision": "0" * 40,
            "split": {"train": "train", "test": "test"},
        }
    )
    source = hub.open_source(section, {}, tmp_path)
    findings = Findings()
    assert [*documents_in(source.splits["train"](), findings)] == [Document(text="a")]
    assert findings.columns.unused() == ["id"]
    later = Findings()
    assert [*documents_in(source.splits["test"](), later)] == [Document(text="b")]
    findings.update(json.loads(json.dumps(later.as_json())))
    assert findings.columns.unused() == ["id", "image"]
    with pytest.raises(UserError, match=r"^datasets\.d\.columns\.text: no row has a column body, "):
        findings.columns.check({"text": "body"}, "datasets.d.columns")


def test_bad_rows_of_two_splits_with_equal_numbers_are_two(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The folder stands in the hub's place.
    monkeypatch.setattr(hub, "load", lambda repo_id, revision, *rest: load(repo_id, None, *rest))
    for split in ("train", "test"):
        texts: list[str | None] = [f"{split} {number}" for number in range(1000)]
        texts[100:115] = [None] * 15
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (repository / f"more/{split}.jsonl").write_text(rows)
    cfg = {
        "source": "hub",
        "repo_id": "owner/name",
        "revision": "0" * 40,
        "data_dir": "more",
        "split": {"train": "train", "test": "test"},
        "validation_share": 0,
        "bad_rows": "drop",
    }
    (repository / "README.md").unlink()
    (repository / "more/deep/train.jsonl").unlink()
    with pytest.raises(UserError) as caught:
        download(Path("out"), cfg)
    assert str(caught.value).startswith(
        "datasets.out.bad_rows: 30 of 2,000 rows are bad, more than 1%, the first in owner/name, "
        "train, row 101: got nothing in column text, expected text; "
    )


def test_files_that_name_the_same_numbers_differently_cost_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for folder, names in (("same", ["cat", "dog", "cow"]), ("other", ["dog", "cat"])):
        (tmp_path / folder).mkdir()
        for split, own in (("train", ["cat", "dog"]), ("test", names)):
            features = datasets.Features({"kind": datasets.ClassLabel(names=own)})
            rows = datasets.Dataset.from_dict({"kind": [0, 1]}, features)
            rows.to_parquet(tmp_path / folder / f"{split}.parquet")
    rows = load(str(tmp_path / "same"), None, None, None, "test")
    found = documents_of_hub("x", rows, Shape("text", {"text": "kind"}))
    assert [row["text"] for row in found] == ["cat", "dog"]
    with pytest.raises(UserError) as caught:
        load(str(tmp_path / "other"), None, None, None, "test")
    assert str(caught.value).startswith(
        f"{tmp_path}/other: dog in column kind is number 0 in {tmp_path}/other/test.parquet, and "
        "1 in the dataset's description; download the files"
    )


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
def test_parquet_has_the_rows_of_the_library_without_its_copy(parquet: Path, split: str) -> None:
    loaded = load(str(parquet), None, None, None, split)
    parts = pickle.loads(pickle.dumps([*hub.parts("x", loaded, Shape("text"))]))
    found = [row for part in parts for _, row in part.unparsed.rows(Remarks())]
    assert not [*parquet.parent.rglob("*.arrow")]
    # Computed independently, by the library's copy.
    expected = datasets.load_dataset(str(parquet), split=split)
    names = expected.features["kind"].names
    for row in found:
        row["kind"] = names.index(row["kind"])
    assert found == [
        {key: one for key, one in row.items() if one is not None or key == "score"}
        for row in expected
    ]
    assert loaded.num_rows == len(expected)
    assert sum(part.num_bytes for part in parts) == pytest.approx(loaded.num_bytes, abs=len(parts))


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
    with pytest.raises(UserError, match=r"can't load split test at revision None \(\[\{'expected'"):
        load(str(parquet), None, None, None, "test")


LOAD = """
import sys
from moray.corpus.hub import load
from moray.errors import UserError
for revision in sys.argv[1:]:
    try: print([*load("owner/rows", revision, None, None, "train").tables()][0].to_pylist())
    except UserError as error: print(error)
"""


@pytest.mark.long
def test_another_commit_is_not_read_if_the_hub_does_not_answer(tmp_path: Path) -> None:
    hub, repository = Hub(), Repository({}, "")
    hub.repositories["datasets", "owner/rows"] = repository

    def commit(text: str) -> str:
        return hub.commit(repository, {"train.jsonl": json.dumps({"text": text}).encode()})

    def loaded(*revisions: str, offline: bool = False) -> list[str]:
        # The library reads its settings when it is imported.
        settings = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": str(int(offline)),
            "HF_HUB_DISABLE_XET": "1",
        }
        command = [sys.executable, "-c", LOAD, *revisions]
        done = subprocess.run(
            command, env=os.environ | settings, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    with hub_server(hub):
        old = commit("old")
        assert loaded(old) == ["[{'text': 'old'}]"]
        new = commit("new")
        assert loaded(new) == ["[{'text': 'new'}]"]
    refusal, rows = loaded(old, new, offline=True)
    assert rows == "[{'text': 'new'}]"
    assert refusal.startswith(
        "owner/rows: the Hub can't be reached (or HF_HUB_OFFLINE is set), and the copy on this "
        f"machine is default of commit {new}, expected {old}; "
    )


def test_a_token_is_written_nowhere(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # The folder stands in the hub's place.
    monkeypatch.setattr(hub, "load", lambda repo_id, revision, *rest: load(repo_id, None, *rest))
    token = "hf_a_token_that_nobody_has"
    monkeypatch.setenv("HF_TOKEN", token)
    cfg = {
        "source": "hub",
        "repo_id": "owner/name",
        "revision": "0" * 40,
        "name": "one",
        "split": {"train": "train", "test": "test"},
        "validation_share": 0,
    }
    folder = Path("out")
    download(folder, cfg)
    (test,) = read_documents(folder / "test.parquet")
    assert [row["text"] for row in test] == TEXTS["one/test.jsonl"]
    described = json.loads((folder / "dataset.json").read_text())
    assert described["repo_id"] == "owner/name"
    assert described["revision"] == "0" * 40
    assert described["splits_read"] == {"train": "train", "test": "test"}
    written = [path for path in Path().rglob("*") if path.is_file()]
    assert folder / "dataset.json" in written
    assert not [path for path in written if token.encode() in path.read_bytes()]
    assert token not in "".join(capfd.readouterr())
