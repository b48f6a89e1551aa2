"""Rows of Arrow tables, against the same rows as JSON."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from read_parts import documents, documents_of_hub

from moray.corpus.dataset import Document
from moray.corpus.findings import Findings
from moray.errors import UserError
from moray.tasks.language.formats import Shape

SHAPE = Shape("messages")
QUESTION = {"role": "user", "content": "a"}


def asked(**arguments: Any) -> dict[str, Any]:
    """A conversation with a tool call, and its tool, whose schema has a null."""
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    properties = {name: {"type": "integer", "default": None} for name in arguments}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    tools = [{"type": "function", "function": function}]
    return {"messages": [QUESTION, answer], "tools": tools}


ROWS = [asked(limit=None, at=1), asked(other=2), asked(), asked(at=None)]


def of_file(path: Path) -> list[Document]:
    return list(documents({"it": path}, SHAPE))


def as_lines(path: Path) -> list[Document]:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return of_file(path)


@pytest.fixture
def expected(tmp_path: Path) -> list[Document]:
    """What JSON lines give, with all nulls that are meant."""
    found = as_lines(tmp_path / "rows.jsonl")
    calls = [json.loads(document["messages"])[1]["tool_calls"] for document in found]
    assert [call["function"]["arguments"] for (call,) in calls] == [
        {"limit": None, "at": 1},
        {"other": 2},
        {},
        {"at": None},
    ]
    assert all("null" in str(document["tools"]) for document in (found[0], found[1], found[3]))
    return found


ARGUMENTS = {"name": datasets.Value("string"), "arguments": datasets.Json()}
MESSAGE = {
    "role": datasets.Value("string"),
    "content": datasets.Value("string"),
    "tool_calls": datasets.List({"type": datasets.Value("string"), "function": ARGUMENTS}),
}
JSON_ENTRIES = datasets.List(datasets.Json())
FEATURES = {
    "whole": {"messages": datasets.Json(), "tools": datasets.Json()},
    "entries": {
        "messages": datasets.List(datasets.Json()),
        "tools": datasets.List(datasets.Json()),
    },
    "arguments": {"messages": datasets.List(MESSAGE), "tools": JSON_ENTRIES},
}


@pytest.mark.parametrize("kind", FEATURES)
def test_columns_of_json_keep_meant_nulls(
    kind: str, expected: list[Document], tmp_path: Path
) -> None:
    rows = datasets.Dataset.from_list(ROWS, features=datasets.Features(FEATURES[kind]))
    rows.to_parquet(tmp_path / "rows.parquet")
    assert of_file(tmp_path / "rows.parquet") == expected
    assert list(documents_of_hub("it", rows, SHAPE)) == expected


def json_text(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table({name: [json.dumps(row[name]) for row in rows] for name in rows[0]})


def json_arguments(rows: list[dict[str, Any]]) -> pa.Table:
    """As OpenAI has them."""
    rows = json.loads(json.dumps(rows))
    for row in rows:
        function = row["messages"][1]["tool_calls"][0]["function"]
        function["arguments"] = json.dumps(function["arguments"])
        wanted = row["tools"][0]["function"]
        wanted["parameters"] = json.dumps(wanted["parameters"])
    return pa.Table.from_pylist(rows)


def maps(rows: list[dict[str, Any]]) -> pa.Table:
    """Each map has its own keys."""
    arguments = pa.map_(pa.string(), pa.int64())
    function = pa.struct({"name": pa.string(), "arguments": arguments})
    call = pa.struct({"type": pa.string(), "function": function})
    message = pa.struct({"role": pa.string(), "content": pa.string(), "tool_calls": pa.list_(call)})
    messages = pa.array([row["messages"] for row in rows], pa.list_(message))
    return pa.table({"messages": messages, "tools": [json.dumps(row["tools"]) for row in rows]})


@pytest.mark.parametrize("make", [json_text, json_arguments, maps])
def test_json_as_text_and_maps_keep_meant_nulls(
    make: Callable[[list[dict[str, Any]]], pa.Table], expected: list[Document], tmp_path: Path
) -> None:
    pq.write_table(make(ROWS), tmp_path / "rows.parquet")
    assert of_file(tmp_path / "rows.parquet") == expected


def test_of_nested_columns_nulls_are_left_out_and_told_if_they_can_be_meant(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    findings = Findings()
    for document in documents({str(path): path}, replace(SHAPE, findings=findings)):
        assert "null" not in str(document["tools"])
    told = f"{path}: nulls in arguments of tool calls and in parameters of tools are left out, "
    (line,) = findings.remarks.lines("x")
    assert line.startswith(f"dataset x: {told}")
    plain = [{"messages": [QUESTION, {"role": "assistant", "content": "b", "name": None}]}] * 2
    pq.write_table(pa.Table.from_pylist(plain), tmp_path / "plain.parquet")
    plain_findings = Findings()
    file = tmp_path / "plain.parquet"
    assert len([*documents({"it": file}, replace(SHAPE, findings=plain_findings))]) == 2
    assert not plain_findings.remarks.lines("x")


def test_invalid_json_in_a_column_costs_one_line(tmp_path: Path) -> None:
    column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[]", "[1"]))
    pq.write_table(pa.table({"messages": column}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"^it, row 1: got an empty list for messages"):
        of_file(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"messages": column[1:]}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"^it, row 1: invalid JSON in a column \("):
        of_file(tmp_path / "rows.parquet")
