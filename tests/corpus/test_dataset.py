"""A dataset on disk."""

import hashlib
import json
from itertools import chain, cycle
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from moray.corpus.dataset import (
    SPLITS,
    Document,
    messages_of,
    num_groups,
    read_documents,
    read_group,
    tools_of,
)
from moray.corpus.documents import write_dataset

TEXTS = [f"text {number} é🐍" * (number % 3) for number in range(2500)]


def test_rows_come_back_in_order_from_the_file_of_their_split(tmp_path: Path) -> None:
    rows = [Document(text=text, group="g", place="left out") for text in TEXTS[:1000]]
    rows += [Document(text=text) for text in TEXTS[1000:]]
    write_dataset(tmp_path, zip(cycle(SPLITS), rows, strict=False), "text", {})
    for place, split in enumerate(SPLITS):
        batches = list(read_documents(tmp_path / f"{split}.parquet"))
        kept = [{name: value for name, value in row.items() if name != "place"} for row in rows]
        assert list(chain(*batches)) == kept[place::3]


MIB = 2**20


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        # As many documents to a group as make 4 MiB, the last of them included, but at most 2^16.
        (["x" * MIB] * 10, [4, 4, 2]),
        (["é" * (MIB // 2)] * 10, [4, 4, 2]),
        (["x" * 10 * MIB, "a", "x" * 10 * MIB, "b"], [1, 2, 1]),
        (["a", "b"], [2]),
        (["x" * 80] * 60_000, [52_429, 7_571]),
        (["x" * 20] * 140_000, [65_536, 65_536, 8_928]),
        (["x" * 64] * 65_537, [65_536, 1]),
        (["x" * MIB] * 4, [4]),
        ([], []),
    ],
)
def test_groups_are_bounded_in_bytes_and_rows(
    tmp_path: Path, texts: list[str], sizes: list[int]
) -> None:
    rows = [("validation", Document(text=text)) for text in texts]
    rows += [(split, Document(text="a")) for split in ("train", "test")]
    write_dataset(tmp_path, iter(rows), "text", {})
    file = tmp_path / "validation.parquet"
    groups = [read_group(file, group) for group in range(num_groups(file))]
    assert [len(group) for group in groups] == sizes
    assert [row["text"] for group in groups for row in group] == texts
    assert list(read_documents(file)) == groups


def test_conversations_come_back(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "é 🐍"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, None], "b": {}}}}],
        },
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": {"y": 1}}}}]
    with_tools = Document(messages=json.dumps(messages), tools=json.dumps(tools))
    without = Document(messages=json.dumps(messages[:1]), tools=None)
    rows = [("train", with_tools), ("train", without), ("test", without)]
    write_dataset(tmp_path, iter(rows), "messages", {})
    (found,) = read_documents(tmp_path / "train.parquet")
    assert found == [with_tools, without]
    assert [messages_of(row) for row in found] == [messages, messages[:1]]
    assert [tools_of(row) for row in found] == [tools, None]


def test_pairs_come_back(tmp_path: Path) -> None:
    row = Document(prompt="é", completion="")
    write_dataset(tmp_path, iter([("train", row), ("test", row)]), "prompt-completion", {})
    for split, expected in (("train", [row]), ("validation", []), ("test", [row])):
        assert list(chain(*read_documents(tmp_path / f"{split}.parquet"))) == expected


def test_the_description_says_what_the_files_hold(tmp_path: Path) -> None:
    rows = [Document(prompt=text, completion=f"{text}!") for text in TEXTS[:50]]
    returned = write_dataset(
        tmp_path,
        zip(cycle(SPLITS), rows, strict=False),
        "prompt-completion",
        {"source": "here", "revision": "1"},
    )
    described = json.loads((tmp_path / "dataset.json").read_text())
    assert described == returned
    assert described["source"] == "here"
    assert described["revision"] == "1"
    assert described["format"] == "prompt-completion"
    assert list(described["splits"]) == list(SPLITS)
    for split, facts in described["splits"].items():
        path = tmp_path / f"{split}.parquet"
        table = pq.read_table(path).to_pylist()
        size = sum(len(value.encode()) for row in table for value in row.values() if value)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        assert facts == {"rows": len(table), "bytes": size, "sha256": sha256}
