"""A JSON file that is one value with all rows is answered with a command that unpacks it."""

import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from read_parts import documents

from moray.config.tasks import FormatName
from moray.corpus.dataset import Document
from moray.errors import UserError
from moray.tasks.language.formats import Shape

ROWS = [{"text": "one", "n": 1}, {"text": "it's two", "n": 2}]
TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def read(file: str, format: FormatName = "text") -> list[Document]:
    return list(documents({file: Path(file)}, Shape(format)))


def refused(file: str, format: FormatName = "text") -> str:
    with pytest.raises(UserError) as caught:
        read(file, format)
    return str(caught.value)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "name", ["rows.json", "deep/it's my rows.json", "rows.jsonl", "rows.json.gz"]
)
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"data": ROWS}, "an object with rows in data"),
        ({"version": 1, "info": {"a": 1}, "data": ROWS}, "an object with rows in data"),
        ({"1": ROWS[0], "b": ROWS[1]}, "an object of rows"),
        ({"text": ["one", "it's two"], "n": [1, 2]}, "an object of columns"),
        (
            {"text": {"0": "one", "1": "it's two"}, "n": {"0": 1, "1": 2}},
            "an object of columns",
        ),
    ],
)
def test_rows_inside_an_object_are_unpacked_by_the_command_that_is_told(
    value: Any,
    problem: str,
    name: str,
    indent: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    content = json.dumps(value, indent=indent).encode()
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    line = refused(name)
    start = re.escape(f"{name}, line 1: got {problem}, expected a list of rows; run ")
    told = re.fullmatch(rf"{start}(python .*), and use (.*) instead", line)
    assert told, line
    subprocess.run(told[1], shell=True, check=True)
    assert [row["text"] for row in read(told[2])] == ["one", "it's two"]
    assert json.loads(Path(told[2]).read_text()) == ROWS


def test_several_lists_are_files_of_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.json").write_text(json.dumps({"train": ROWS[:1], "test": ROWS[1:]}))
    line = refused("rows.json")
    told = re.search("; run (python .*), and use (.*) instead$", line)
    assert told
    assert told[2] == "path: {train: rows-train.json, test: rows-test.json}"
    subprocess.run(told[1], shell=True, check=True)
    assert [row["text"] for row in read("rows-train.json")] == ["one"]
    assert [row["text"] for row in read("rows-test.json")] == ["it's two"]


def test_a_list_needs_another_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps(ROWS))
    assert refused("rows.jsonl") == (
        "rows.jsonl, line 1: got a list of rows, expected a row on each line; rename the file to "
        "rows.json"
    )


@pytest.mark.parametrize(
    ("format", "row", "problem"),
    [
        ("messages", {"dialog": TURNS}, "got columns dialog, expected messages"),
        (
            "messages",
            {"messages": TURNS[:1]},
            "the conversation has no assistant message to train on",
        ),
        (
            "messages",
            {"messages": [TURNS, TURNS]},
            "message 1 has no role, expected role and content",
        ),
        ("text", {"text": 5, "meta": [{"a": 1}]}, "got int in column text, expected text"),
        ("text", {"body": "x", "tags": ["a"]}, "got columns body, tags, expected text"),
    ],
)
def test_a_single_row_is_taken_for_one(
    format: FormatName, row: Any, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.json").write_text(json.dumps(row))
    assert refused("rows.json", format).startswith(f"rows.json, line 1: {problem}")


def test_of_many_lines_only_the_bad_one_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.json").write_text(json.dumps({"data": ROWS}) + "\n" + json.dumps(ROWS[0]))
    assert refused("rows.json").startswith("rows.json, line 1: got columns data, expected text; ")
