"""A folder laid out like a dataset's repository on the hub, read as the hub's are."""

import json
import pickle
from pathlib import Path
from typing import Any

import datasets
import pytest
from read_parts import documents_in, documents_of_hub, loaded_rows

from moray.config.schema.datasets import HubDataset
from moray.corpus.dataset import Document, read_documents
from moray.corpus.findings import Findings
from moray.corpus.hub import load
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


def test_parts_can_be_sent_to_other_processes_and_large_rows_have_their_own() -> None:
    texts = ["a" * 2**20, "b" * 2**21, "c", "d"]
    rows = loaded_rows(datasets.Dataset.from_dict({"text": texts}))
    parts = pickle.loads(pickle.dumps([*hub.parts("x", rows, Shape("text"))]))
    assert [row["text"] for row in documents_in(parts, Findings())] == texts
    assert len(parts) > 1
    assert [place for part in parts for place, _ in part.with_places(Findings())] == [
        f"x, row {number}" for number in range(1, 5)
    ]


def test_a_row_that_is_no_document_is_reported_with_its_number() -> None:
    rows = datasets.Dataset.from_dict({"text": ["a", None, "b"]})
    with pytest.raises(UserError) as caught:
        list(documents_of_hub("owner/name", rows, Shape("text")))
    assert str(caught.value) == (
        "owner/name, row 2: got nothing in column text, expected text; "
        "write it as text, or remove the row"
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
        "datasets.out.max_bad_rows: 30 of 2,000 rows are bad, more than 1%, the first in "
        "owner/name, train, row 101: got nothing in column text, expected text; "
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
